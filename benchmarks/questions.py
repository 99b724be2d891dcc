"""A table of 1,000 questions in one process, and the first answer of the command line."""

import subprocess
import sys
import time
from itertools import product

import numpy as np
import pandas as pd

from lib import paths
from lib.predict.questions import answers, questions

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "vit_b_16", "convnext_tiny", "simple_cnn",
          "regnet_y_400mf", "shufflenet_v2_x1_0")
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
DEVICES = ("cpu", "t4", "p100-pcie-16gb", "v100-pcie-32gb", "a100-pcie-40gb", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s",
           "b200")
FIRST = {"advise resnet50 --batch-size 16 --no-look": 3, "advise resnet50 --batch-size 16 --device cpu --no-look": 3,
         "advise resnet50 --batch-size 16 --device t4": 3}


def main() -> None:
    """Print the time of a question in a table, and medians of the first answers of whole processes."""
    table = pd.DataFrame(product(MODELS, BATCHES, DEVICES), columns=["model", "batch_size", "device"])
    begin = time.perf_counter()
    result = answers.answers(questions.of_table(table))
    taken = time.perf_counter() - begin
    print(f"   {len(table):,} questions, {len(MODELS)} networks x {len(BATCHES)} batches x {len(DEVICES)} devices: "
          f"{taken:.1f} s, {taken / len(table) * 1e3:.1f} ms each; {(result['error'] != '').sum()} without an answer")
    for line, times in FIRST.items():
        seconds = []
        for _ in range(times):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "lib", *line.split()], check=True, capture_output=True, cwd=paths.ROOT)
            seconds.append(time.perf_counter() - begin)
        print(f"   python -m lib {line}: {np.median(seconds):.2f} s (median of {times})")
