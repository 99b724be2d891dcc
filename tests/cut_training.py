"""Runs of fine-tuning that are killed and resumed: ``python -m tests.cut_training KILLS SEED``.

Each starts in a fork of this process, in which all is imported already, and is killed after a random batch, or at a random
moment. What is compared with an uninterrupted run: the last weights, the best ones, and what was measured.
"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path

from tests.killed import main

CONFIG = {"root": "synthetic:breastmnist", "loss_name": "cross_entropy", "load_pretrained": False, "batch_size": 16,
          "num_workers": 0, "epochs": 3, "optimizer": "adamw", "grad_accum_steps": 2, "autocast_dtype": "fp32",
          "max_datapoints_per_class": 55, "gpu_batch_aug": True, "cpu_color_jitter": True, "checkpoint_steps": 1,
          "save_per_epoch_checkpoint": True}
BATCHES = 3 * 7  # of all epochs


def tiny_vit(folder: Path, **changes) -> str:
    """Write the config of a small ViT with dropout; return its folder."""
    from transformers import ViTConfig

    ViTConfig(**{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 28,
                 "patch_size": 14, "hidden_dropout_prob": 0.1, **changes}).save_pretrained(folder)
    return str(folder)


def _train(config, folder, last, moment_s):
    """Train in a fork, which is killed after batch ``last`` of its own, or after ``moment_s``; return its exit status."""
    import torch

    from lib.finetune import checkpoints, run

    child = os.fork()
    if not child:
        left = [last]

        def check():
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            checkpoints._SHARE = 0.0
            run.train(config, folder, torch.device("cpu"), threads=1, check=check)
            status = 0
        finally:
            os._exit(status)
    if moment_s:
        time.sleep(moment_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _outcome(folder):
    """Return all that must be the same: every tensor, and what was measured but for times."""
    from lib import store
    from lib.work import weights

    tensors = {path.name: weights.load(path) for path in sorted((folder / "checkpoints").glob("*.pt"))}
    tensors["last.pt"] = {name: tensors["last.pt"][name] for name in ("model", "optimizer", "schedule", "random")}
    summary = store.read_json(folder / "summary.json")
    measured = [{name: value for name, value in record.items() if name not in ("train_s", "images_per_sec", "energy_j")}
                for record in summary["history"]]
    rows = store.read(folder / "profile.csv", "profile")
    rows = rows[["split", "epoch", "batch_idx", "global_step", "batch_size", "loss", "lr"]]
    scalars = store.read(folder / "history.csv", "history")[["step", "epoch", "name", "value"]]
    scalars = scalars[~scalars["name"].str.contains("throughput|energy")]
    return {**tensors, "epochs": measured, "test": summary["test"], "best": summary["best_value"],
            "rows": rows.fillna(-1.0).to_dict("list"), "scalars": sorted(scalars.itertuples(index=False, name=None))}


def _differing(a, b, where=""):
    """Return where two trees of tensors and values are not equal, bit for bit."""
    import torch

    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [where]
    if isinstance(a, list | tuple):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{where}: {len(a)} against {len(b)}"]
        return [one for name in a for one in _differing(a[name], b[name], f"{where}/{name}")]
    return [] if a == b else [f"{where}: {a} against {b}"]


def run(kills, seed):
    """Kill runs so often in all, resume each until it ends; return how far they were, and what is wrong."""
    from lib.config.base import build
    from lib.finetune.config import TrainConfig
    from lib.work import weights

    draw, wrong, reached, begin = random.Random(seed), [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        config = build(TrainConfig, {**CONFIG, "model_flavour": tiny_vit(Path(top) / "vit")}, "test")
        if _train(config, Path(top) / "whole", 0, 0.0):
            return {"wrong": ["the uninterrupted run failed"]}
        expected, number = _outcome(Path(top) / "whole"), 0
        while kills > 0:
            folder, number = Path(top) / str(number), number + 1
            for _ in range(min(kills, draw.randint(1, 4))):
                at_batch = draw.random() < 0.7
                status = _train(config, folder, draw.randint(1, BATCHES // 2) if at_batch else 0,
                                0.0 if at_batch else draw.uniform(0.05, 0.5))
                if status == 0:
                    break
                kills -= 1
                last = folder / "checkpoints" / "last.pt"
                reached.append(weights.load(last)["position"]["batches"] if last.exists() else 0)
            if _train(config, folder, 0, 0.0):
                wrong.append(f"run {number} could not be resumed")
            elif differing := _differing(_outcome(folder), expected):
                wrong.append(f"run {number} ended otherwise: {len(differing)} values, such as {differing[:5]}")
    return {"kills": len(reached), "reached": reached, "seconds": round(time.monotonic() - begin, 1), "wrong": wrong}


if __name__ == "__main__":
    main(run)
