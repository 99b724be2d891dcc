"""What a prediction costs: one operator, a row of many, a network after capture (``questions`` times all of ``advise``)."""

import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from lib.predict import registry, training
from lib.predict.networks import work
from lib.work import networks

SINGLES, ROWS, ESTIMATES = 200, 20_000, 20
NETWORKS = (("resnet50", 16), ("efficientnet_b0", 8), ("vit_b_16", 1))
TOY = {"SINGLES": 2, "ROWS": 100, "ESTIMATES": 1, "NETWORKS": (("squeezenet1_1", 1),)}


def _median_us(call: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - begin) / 1e3)
    return float(np.median(taken))


def main() -> None:
    """Print the times."""
    begin = time.perf_counter()
    one = registry.for_devices(["cpu"], "fp32")[0]
    print(f"   loading the CPU's model: {(time.perf_counter() - begin) * 1e3:.0f} ms")
    table, _ = training.reference_sweeps(training.reference_machine())
    for family in ("conv2d", "linear", "activation"):
        rows = table.query("op == @family and `pass` == 'forward'")
        single = _median_us(lambda rows=rows: one.model.predict(rows.head(1)), SINGLES)
        many = pd.concat([rows] * (ROWS // len(rows) + 1)).head(ROWS).reset_index(drop=True)
        batched = _median_us(lambda many=many: one.model.predict(many), 3) / len(many)
        print(f"   {family:12} one prediction {single:.0f} µs; a row of {ROWS:,}: {batched:.2f} µs")
    for name, batch in NETWORKS:
        item = work.captured(networks.network(name, batch), "infer")
        print(f"   {name:16} after capture: {_median_us(lambda item=item: one.estimate(item), ESTIMATES) / 1e3:.2f} ms")

