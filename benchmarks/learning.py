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


def train(seed: int, home: Path) -> tuple[float, float, float]:
    """Train once; return validation AUC, test AUC and seconds."""
    import torch

    from lib.config.definitions import Workload
    from lib.work import datasets, training, workloads

    begin = time.monotonic()
    training.seed_everything(seed)
    task = workloads.prepare(Workload(id="XRAY", dataset="pneumoniamnist", size=28, model="simple_cnn", batch_size=64))
    splits = datasets.open_splits(task.workload, "auto", "native", augment=True).splits
    loaders = {kind: torch.utils.data.DataLoader(datasets.bounded(split, 0, 64, seed), 64, shuffle=kind == "train")
               for kind, split in splits.items()}
    trainer = training.Trainer(task, training.Options(torch.device("cpu")))
    history = training.fit(trainer, loaders["train"], loaders["val"], EPOCHS, home / f"best-{seed}.pt")
    test = trainer.evaluate(loaders["test"])
    return max(record["auc"] for record in history), test["auc"], time.monotonic() - begin


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
            words = [sys.executable, "-m", "benchmarks.learning", str(seed), home]
            done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LIB_OUTPUT": home})
            val, test, seconds = map(float, done.stdout.split())
            results.append((test, seconds))
            print(f"   seed {seed}: validation AUC {val:.4f}, test AUC {test:.4f}, {seconds:.0f} s", flush=True)
    aucs, seconds = np.array(results).T
    print(f"   test AUC {aucs.mean():.4f} ± {aucs.std(ddof=1):.4f}, least {aucs.min():.4f}; longest {seconds.max():.0f} s")


if __name__ == "__main__":
    print(*train(int(sys.argv[1]), Path(sys.argv[2])))
