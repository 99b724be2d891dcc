"""Twenty torchvision networks: the share of time that covered families take, and the sum of their operators against them."""

import subprocess
import sys
import time

import numpy as np
import torch

from benchmarks import operator_sum
from lib.measure.networks.case import Case

NETWORKS = """resnet18 resnet50 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x1_0 squeezenet1_1 densenet121
    googlenet efficientnet_b0 mnasnet1_0 regnet_y_400mf regnet_x_400mf vgg11 alexnet convnext_tiny swin_t vit_b_32 inception_v3
    resnext50_32x4d""".split()
CASES = (("infer", 8), ("infer", 1), ("train", 8))  # mode and batch size of what is composed
ROUNDS = 6
TOY = {"NETWORKS": ["squeezenet1_1"], "CASES": (("infer", 1),), "ROUNDS": 1}
CPU = torch.device("cpu")


def _spread(errors: np.ndarray) -> str:
    return f"error {np.median(errors):.1f} % median, {errors.mean():.1f} % mean, {errors.max():.0f} % worst"


def cover() -> None:
    """Print the covered share of each network's operators, in inference and in a training step."""
    lowest = 1.0
    for name in NETWORKS:
        shares = []
        for mode in ("infer", "train"):
            found = operator_sum.coverage(Case(name, mode, 2), CPU)
            lowest = min(lowest, found["covered_share"])
            shares.append(f"{mode} {found['covered_share']:.2%} of {found['operators_ms']:.0f} ms "
                          f"(whole {found['whole_ms']:.0f} ms)")
        print(f"   {name:20} {'   '.join(shares)}", flush=True)
    print(f"   lowest share: {lowest:.2%}")


FAULTS = """
import sys, time, numpy as np, torch
from benchmarks import heap
from lib.measure.networks import allocator, case
call = case.program(case.Case(sys.argv[1], sys.argv[2], int(sys.argv[3])), torch.device("cpu"))
def look():
    for _ in range(3): call()
    begin, samples = allocator.page_faults(), []
    for _ in range(7):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return np.median(samples) * 1e3, (allocator.page_faults() - begin) / 7
default = look()
with heap.retained():
    kept = look()
print(*default, *kept)
"""


def keep(mode: str, batch_size: int) -> None:
    """Print what it is worth to keep freed memory: each network in a process of its own, as glibc does it and kept."""
    gains = []
    for name in NETWORKS:
        done = subprocess.run([sys.executable, "-c", FAULTS, name, mode, str(batch_size)], capture_output=True, text=True,
                              check=True)
        default_ms, faults, kept_ms, kept_faults = map(float, done.stdout.split())
        gains.append(default_ms / kept_ms)
        print(f"      {name:20} {default_ms:8.1f} ms, {faults:7.0f} page faults a pass; kept {kept_ms:8.1f} ms, "
              f"{kept_faults:4.0f}; {gains[-1]:.2f} times as fast", flush=True)
    print(f"   {mode}, batch {batch_size}: keeping freed memory is {np.median(gains):.2f} times as fast at the median, "
          f"{max(gains):.2f} at most")


def compose(names: list[str], mode: str, batch_size: int) -> None:
    """Print for each network the ratio of its operators' sum to itself, in each state of the caches."""
    begin = time.monotonic()
    cases, kinds = operator_sum.compose([Case(name, mode, batch_size) for name in names], CPU, ROUNDS)
    print(f"   {mode}, batch {batch_size}: {len(kinds)} distinct operators, {time.monotonic() - begin:.0f} s")
    for row in cases.itertuples():
        print(f"      {row.network:20} {row.network_ms:8.1f} ms (IQR {row.network_iqr_pct:3.0f} %, {row.usual_share:4.0%} "
              f"usual)  warm {row.warm_ratio:.3f}  cold {row.cold_ratio:.3f}  found {row.found_ratio:.3f}")
    for chosen, part in (("all", cases), ("half of the passes usual", cases[cases["usual_share"] >= 0.5])):
        for state in operator_sum.STATES if len(part) else ():
            print(f"      {chosen}, {len(part)}: {state:6} {_spread(np.abs(part[f'{state}_ratio'].to_numpy() - 1) * 100)}",
                  flush=True)


def main() -> None:
    """Cover, keep, then compose inference at batch 8 and 1, then training steps at batch 8."""
    cover()
    keep("infer", 8)
    for mode, batch_size in CASES:
        compose(NETWORKS, mode, batch_size)


if __name__ == "__main__":
    main()
