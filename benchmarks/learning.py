"""SimpleCNN on real chest X-rays: test AUC of the best-validation checkpoint, five seeds, 60 s each at most."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests import XRAYS

EPOCHS, SEEDS = 18, 5
TOY = {"EPOCHS": 1, "SEEDS": 1}


def write_pictures(root: Path) -> None:
    """Write the X-rays as a folder of images: MedMNIST's own loader refuses a file that is not the published one."""
    with np.load(XRAYS) as arrays:
        for split in ("train", "val", "test"):
            for label in (0, 1):
                folder = root / split / str(label)
                folder.mkdir(parents=True)
                for number, image in enumerate(arrays[f"{split}_images"][arrays[f"{split}_labels"].ravel() == label]):
                    Image.fromarray(image).save(folder / f"{number}.png")


def train(root: str, seed: int, epochs: int) -> tuple[float, float, float]:
    """Train once; return validation AUC, test AUC and seconds."""
    from lib.finetune.config import TrainConfig
    from lib.finetune.finetune import finetune

    begin = time.monotonic()
    summary = finetune(TrainConfig(
        root=root, model_flavour="simple_cnn", loss_name="cross_entropy", load_pretrained=False, image_size=28,
        batch_size=64, num_workers=0, epochs=epochs, weight_decay=0.0, seed=seed, autocast_dtype="fp32", gpu_batch_aug=True,
        monitor_metric="val_auroc_macro"))
    return summary["best_value"], summary["test"]["test_auroc_macro"], time.monotonic() - begin


def main() -> None:
    """Print one line per seed and their mean."""
    if not XRAYS.is_file():
        print(f"   skipped: the real X-rays are not here ({XRAYS})")
        return
    with tempfile.TemporaryDirectory() as home:
        write_pictures(Path(home) / "xrays")
        results = []
        for seed in range(SEEDS):
            words = [sys.executable, "-m", "benchmarks.learning", f"{home}/xrays", str(seed), str(EPOCHS)]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "LIB_OUTPUT": home})
            val, test, seconds = map(float, done.stdout.splitlines()[-1].split())
            results.append((test, seconds))
            print(f"   seed {seed}: validation AUC {val:.4f}, test AUC {test:.4f}, {seconds:.0f} s", flush=True)
    aucs, seconds = np.array(results).T
    spread = f" ± {aucs.std(ddof=1):.4f}" if len(aucs) > 1 else ""
    print(f"   test AUC {aucs.mean():.4f}{spread}, least {aucs.min():.4f}; longest {seconds.max():.0f} s")


if __name__ == "__main__":
    print(*train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
