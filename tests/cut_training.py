"""Runs of fine-tuning that are killed and resumed: ``python -m tests.cut_training RUNS SEED``.

Each starts in a fork of this process, in which all is imported already, and is killed some times, after a random batch or at a
random moment. What is compared with an uninterrupted run: the last weights, the best ones, and what was measured.
"""

import itertools
import os
import random
import signal
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tests.killed import in_turn, main, status_of

CONFIG = {"root": "synthetic:breastmnist", "loss_name": "cross_entropy", "load_pretrained": False, "batch_size": 16,
          "num_workers": 0, "epochs": 2, "optimizer": "adamw", "grad_accum_steps": 2, "autocast_dtype": "fp32",
          "max_datapoints_per_class": 55, "gpu_batch_aug": True, "cpu_color_jitter": True, "checkpoint_steps": 1}
BATCHES = 2 * 7  # of all epochs


def tiny_vit(folder, **changes):
    """Write the config of a small ViT with dropout; return its folder."""
    from transformers import ViTConfig

    ViTConfig(**{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 28,
                 "patch_size": 14, "hidden_dropout_prob": 0.1, **changes}).save_pretrained(folder)
    return str(folder)


def pictures(root, counts):
    """Make a dataset of cats and dogs, so many of each in a split; return its folder."""
    draw = np.random.default_rng(0)
    for split, count in counts.items():
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                picture = Image.fromarray(draw.integers(0, 255, (20, 30, 3), np.uint8))
                picture.save(root / split / name / f"{number}.png")
    return root


def _train(config, folder, last=0, moment_s=None):
    """Train in a fork, which is killed after batch ``last`` of its own, or after ``moment_s``; return its exit status."""
    import torch

    from lib.finetune import checkpoints, run

    batches = itertools.count(1)

    def check():
        if next(batches) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def train():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        checkpoints._SHARE = 0.0
        run.train(config, folder, torch.device("cpu"), threads=1, check=check)

    return status_of(train, moment_s)


def values(content):
    """Yield the tensors and plain values of nested dicts and lists, tensors as bytes."""
    import torch

    if isinstance(content, dict):
        content = [content[key] for key in sorted(content, key=str)]
    if isinstance(content, list | tuple):
        for part in content:
            yield from values(part)
    else:
        yield content.numpy().tobytes() if isinstance(content, torch.Tensor) else repr(content)


def different(folder, whole, config):
    """Return in what a run ended otherwise than another one, by a bit or more; times are no part of it."""
    from lib import store
    from lib.work import weights

    wrong = []
    for file in ("last.pt", "best.pt"):
        one, other = (weights.load(run / "checkpoints" / file) for run in (folder, whole))
        names = ["model", "optimizer", "random"] if file == "last.pt" else sorted(other)
        wrong += [f"{file}: {name}" for name in names if list(values(one[name])) != list(values(other[name]))]
    columns = {"profile": ["split", "epoch", "batch_idx", "global_step", "batch_size", "loss", "lr"],
               "history": ["name", "step", "value"]}
    for table, names in columns.items():
        one, other = (store.read(run / f"{table}.csv", table) for run in (folder, whole))
        if table == "history":  # rates and energy are times
            one, other = (rows[rows["name"].str.match("train|val|test|best")].sort_values(["name", "step"], ignore_index=True)
                          for rows in (one, other))
        if not one[names].equals(other[names]):
            wrong.append(f"rows of {table}")
    return wrong


def trial(home, kills, config, whole):
    """Kill a run several times, and let it end; return how many batches it had before the last kill, and what is wrong."""
    from lib.work import weights

    last = home / "checkpoints/last.pt"
    for kill in kills:
        _train(config, home, **kill)
    reached = weights.load(last)["position"]["batches"] if last.exists() else 0
    return reached, ["it cannot be resumed"] if _train(config, home) else different(home, whole, config)


def run(runs, seed):
    """Kill so many runs, resume each until it ends; return how far they were, and what is wrong."""
    from lib.config.base import build
    from lib.finetune.config import TrainConfig

    draw = random.Random(seed)
    cuts = [{"kills": [{"last": draw.randint(1, BATCHES // 2)} if draw.random() < 0.7 else {"moment_s": draw.uniform(0.05, 0.5)}
                       for _ in range(draw.randint(1, 4))]} for _ in range(runs)]
    with tempfile.TemporaryDirectory() as top:
        whole = Path(top) / "whole"
        config = build(TrainConfig, {**CONFIG, "model_flavour": tiny_vit(Path(top) / "vit")}, "test")
        return in_turn(partial(trial, config=config, whole=whole), cuts, runs, lambda _: _train(config, whole))


if __name__ == "__main__":
    main(run)
