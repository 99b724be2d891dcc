"""Runs of fine-tuning that are killed and resumed: ``python -m tests.cut_training RUNS SEED``.

Each starts in a fork of this process, which has imported everything, and is killed some times: after a
state, or at a random moment. A run that is killed after epochs alone ends as one that is not, bit for bit.
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
          "max_datapoints_per_class": 55, "gpu_batch_aug": True, "cpu_color_jitter": True, "checkpoint_steps": 1,
          "save_per_epoch_checkpoint": True}
SAVES = 4  # states per epoch, of 7 batches


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


def state(folder):
    """Return the last state of a run: its weights, and its optimizer's state."""
    from lib.work import distributed, weights

    last = distributed.states(folder / "checkpoints")[-1]
    return {name: weights.load(last / f"{name}.bin") for name in ("pytorch_model", "optimizer")}


def _train(config, folder, saves=0, moment_s=None):
    """Train in a fork, which is killed after so many states were saved, or after ``moment_s``; return its exit status."""
    from lib.finetune.train import train
    from lib.work import distributed

    save, number = distributed.save_state, itertools.count(1)

    def save_and_die(*arguments):
        save(*arguments)
        if next(number) == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    def run():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        distributed.save_state = save_and_die
        train(config, folder, "cpu", threads=1)

    return status_of(run, moment_s)


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


def different(folder, whole, exact):
    """Return how a run ended otherwise than another one: in its steps, where it is ``exact`` in any value but times."""
    from lib import store
    from lib.work import weights

    kept, summary = folder / "checkpoints", store.read_json(folder / "summary.json")
    best, meta = weights.load(kept / "best.pt"), store.read_json(kept / "_best_meta.json")
    wrong, columns = [], {"profile": ["split", "epoch", "batch_idx", "global_step", "batch_size"], "history": ["name", "step"]}
    if (meta["epoch"], meta["best_value"]) != (summary["best_epoch"], summary["best_value"]) or list(values(best)) != list(
            values(weights.load(kept / f"epoch_{meta['epoch']:03d}.pt"))):
        wrong.append("best weights")
    if exact:
        columns = {"profile": [*columns["profile"], "loss", "lr"], "history": [*columns["history"], "value"]}
        if list(values(state(folder))) != list(values(state(whole))):
            wrong.append("weights or optimizer")
        if list(values(best)) != list(values(weights.load(whole / "checkpoints/best.pt"))):
            wrong.append("best weights, which differ")
    for table, names in columns.items():
        tables = [store.read(run / f"{table}.csv", table) for run in (folder, whole)]
        if table == "history":  # rates and energy are times
            tables = [rows[rows["name"].str.match("train|val|test|best")].sort_values(["name", "step"], ignore_index=True)
                      for rows in tables]
        if not tables[0][names].equals(tables[1][names]):
            wrong.append(f"rows of {table}")
    return wrong


def trial(home, kills, config, whole):
    """Kill a run several times, and let it end; return how far it came before the last kill, and what is wrong."""
    from lib.work import distributed

    for kill in kills:
        _train(config, home, **kill)
    saved = distributed.states(home / "checkpoints")
    reached = saved[-1].name if saved else "nothing"
    exact = all(kill.get("saves", 1) % SAVES == 0 for kill in kills) and reached != "nothing"
    return reached, ["it cannot be resumed"] if _train(config, home) else different(home, whole, exact)


def run(runs, seed):
    """Kill so many runs, resume each until it ends; return how far they were, and what is wrong."""
    import kornia  # noqa: F401
    import mlflow  # noqa: F401

    from lib.config.base import build
    from lib.finetune.config import TrainConfig

    draw = random.Random(seed)
    cuts = [{"kills": [{"saves": SAVES}]}, {"kills": [{"saves": 1}]}][:runs]
    while len(cuts) < runs:
        cuts.append({"kills": [{"saves": draw.randint(1, SAVES)} if draw.random() < 0.8 else {"moment_s": draw.uniform(0, 3)}
                               for _ in range(draw.randint(1, 2))]})
    with tempfile.TemporaryDirectory() as top:
        whole = Path(top) / "whole"
        config = build(TrainConfig, {**CONFIG, "model_flavour": tiny_vit(Path(top) / "vit")}, "test")
        return in_turn(partial(trial, config=config, whole=whole), cuts, runs, lambda _: _train(config, whole))


if __name__ == "__main__":
    main(run)
