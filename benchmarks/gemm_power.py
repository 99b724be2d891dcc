"""Watts of published GEMMs on an H200, of whose generation the model of power saw no card: errors and 90 % range."""

import numpy as np
import pandas as pd

from lib import paths
from lib.predict.power import energy
from lib.predict.scores import half_interval, score

GEMMS = paths.ROOT.parent / "shared/data/aiconfigurator/h200_sxm/gemm/vllm/0.22.0/gemm_perf.parquet"
DEVICE = "h200-sxm"
MOST = 1_000_000  # rows
TOY = {"MOST": 100}
_LEAST_MS = 0.02  # of a GEMM: power windows of shorter ones were too short to tell
_ITEM = 2  # bytes of an element


def main() -> None:
    """Print the errors of the watts, given the time, and half their 90 % range in log, which ranges on other cards take."""
    if not GEMMS.is_file():
        print(f"   skipped: {GEMMS} is not there")
        return
    table = pd.read_parquet(GEMMS)
    table = table[(table["gemm_dtype"] == "bfloat16") & (table["latency"] >= _LEAST_MS) & (table["power"] > 0)].head(MOST)
    model, predicted = energy.shipped(), []
    for row in table.itertuples():
        moved = _ITEM * float(row.m * row.k + row.k * row.n + row.m * row.n)
        load = energy.Load(2.0 * row.m * row.n * row.k, moved, 0.0, row.latency, 0.0, "bf16")
        predicted.append(model.watts(load, DEVICE, row.latency))
    measured, watts = table["power"].to_numpy(float), np.array(predicted)
    scored, half = score(measured, watts, interval=False), half_interval(np.log(watts / measured))
    print(f"   {len(table):,} GEMMs in bf16: mean error {scored['mape']:.1f} %, median {scored['median']:.1f} %, bias "
          f"{scored['bias']:+.1f} %; 90 % lie within a factor of {np.exp(half):.2f} ({half:.2f} in log)")
