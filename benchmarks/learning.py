"""SimpleCNN on real chest X-rays: test AUC of the best-validation checkpoint, five seeds, 60 s each at most."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests import XRAYS

EPOCHS = 18


def train(seed: int) -> tuple[float, float, float]:
    """Train once; return validation AUC, test AUC and seconds."""
    from lib.finetune.config import TrainConfig
    from lib.finetune.finetune import finetune

    begin = time.monotonic()
    summary, = finetune([TrainConfig(
        root="medmnist:pneumoniamnist", model_flavour="simple_cnn", loss_name="cross_entropy", load_pretrained=False,
        batch_size=64, num_workers=0, epochs=EPOCHS, weight_decay=0.0, seed=seed, autocast_dtype="fp32", gpu_batch_aug=True,
        monitor_metric="val_auroc_macro")])
    return summary["best_value"], summary["test"]["test_auroc_macro"], time.monotonic() - begin


def main() -> None:
    """Print one line a seed and their mean."""
    if not XRAYS.is_file():
        print(f"   skipped: the real X-rays are not here ({XRAYS})")
        return
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "data" / "medmnist"
        folder.mkdir(parents=True)
        (folder / XRAYS.name).symlink_to(XRAYS)
        results = []
        for seed in range(5):
            words = [sys.executable, "-m", "benchmarks.learning", str(seed)]
            done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LIB_OUTPUT": home})
            val, test, seconds = map(float, done.stdout.splitlines()[-1].split())
            results.append((test, seconds))
            print(f"   seed {seed}: validation AUC {val:.4f}, test AUC {test:.4f}, {seconds:.0f} s", flush=True)
    aucs, seconds = np.array(results).T
    print(f"   test AUC {aucs.mean():.4f} ± {aucs.std(ddof=1):.4f}, least {aucs.min():.4f}; longest {seconds.max():.0f} s")


if __name__ == "__main__":
    print(*train(int(sys.argv[1])))
