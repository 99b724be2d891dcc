"""A table of 1,000 questions in one process, and the first answer of the command line."""

import tempfile
import time
from itertools import product
from pathlib import Path

import pandas as pd

from benchmarks.processes import python_s
from lib.predict.advice import questions

MODELS = ("resnet18 resnet50 mobilenet_v2 efficientnet_b0 densenet121 vit_b_16 convnext_tiny simple_cnn regnet_y_400mf "
          "shufflenet_v2_x1_0").split()
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
DEVICES = "cpu t4 p100-pcie-16gb v100-pcie-32gb a100-pcie-40gb a100-sxm-80gb h100-sxm h200-sxm l40s b200".split()
TABLE = {"networks": 10, "batches": (8, 32), "devices": 5}  # a file of 100 rows, in a process of its own
FIRST = ("advise timm:convnext_tiny --device rtx-4090 --dtype fp16 --batch-size 256",
         "advise resnet50 --batch-size 16 --no-ceilings", "advise resnet50 --batch-size 16 --device cpu --no-ceilings",
         "advise resnet50 --batch-size 16 --device t4")
RUNS = 3
TOY = {"MODELS": MODELS[:1], "BATCHES": (1, 2), "DEVICES": DEVICES[:2], "FIRST": FIRST[-1:], "RUNS": 1}


def main() -> None:
    """Print the time of a question in a table, and medians of the first answers of whole processes."""
    table = pd.DataFrame(product(MODELS, BATCHES, DEVICES), columns=["model", "batch_size", "device"])
    begin = time.perf_counter()
    result = questions.answer(questions.from_table(table))
    taken = time.perf_counter() - begin
    print(f"   {len(table):,} questions, {len(MODELS)} networks x {len(BATCHES)} batches x {len(DEVICES)} devices: "
          f"{taken:.1f} s, {taken / len(table) * 1e3:.1f} ms each; {(result['error'] != '').sum()} without an answer")
    for line in FIRST:
        _timed(line.split(), RUNS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.csv"
        rows = product(MODELS[:TABLE["networks"]], TABLE["batches"], DEVICES[:TABLE["devices"]])
        pd.DataFrame(rows, columns=["model", "batch_size", "device"]).to_csv(path, index=False)
        _timed(["advise", "--questions", str(path), "--no-ceilings"], 1)


def _timed(words: list[str], times: int) -> None:
    wall_s, user_s = python_s(["-m", "lib", *words], times)
    print(f"   python -m lib {' '.join(words)}: {wall_s:.2f} s, of the processor {user_s:.2f} s (median of {times})")
