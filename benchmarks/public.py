"""Models of published data against the published figures: products on five GPUs, convolutions on four, power of attention."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from lib import paths
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.measure import importers
from lib.measure.published import attention_power, wheel
from lib.predict import training
from lib.predict.operators import fitting, inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.fine_tuning import farthest_first, fine_tuned
from lib.predict.operators.validation import score, shapes_of, usable
from lib.predict.power import training as power_training
from lib.predict.power.kinds import ATTENTION

SHARED = paths.ROOT.parent / "shared" / "data"
_POINTS = 200


def _words(found: dict[str, float]) -> str:
    return (f"MAPE {found['mape']:.2f} % ({found['mape_low']:.2f} to {found['mape_high']:.2f}), median {found['median']:.2f}, "
            f"p90 {found['p90']:.1f}, within 10 % {found['within_10']:.1f} %, n {found['n']}")


def unseen(rows: pd.DataFrame, chip: Chip, groups: pd.Series) -> np.ndarray:
    """Return what five folds say of groups that they had not seen."""
    frames = partial(inputs.frames, chip=chip)
    terms, x = frames(rows)
    said = np.full(len(rows), np.nan)
    for train, test in GroupKFold(5, shuffle=True, random_state=0).split(x, groups=groups):
        regressor = fitting.fit_regressor(rows.iloc[train], frames, form="boosted")
        said[test] = regressor.predict(terms.iloc[test].to_numpy(), x.iloc[test][regressor.names].to_numpy(),
                                       np.zeros(len(test), bool))
    return said


def products(tables: dict[str, pd.DataFrame]) -> None:
    """Print the error on unseen (N, K) on the H200."""
    rows = usable(tables["h200-sxm"].query("dtype == 'bf16'")).reset_index(drop=True)
    groups = rows["gemm_n"].astype(str) + " " + rows["gemm_k"].astype(str)
    said = unseen(rows, Chip.of(load_devices()["h200-sxm"], "bf16"), groups)
    found = score(rows["latency_ms"].to_numpy(), said)
    print("   bf16 products on the H200, unseen (N, K):", _words(found), flush=True)


def left_out(tables: dict[str, pd.DataFrame]) -> None:
    """Print the error on each GPU that was left out: from its vendor's ceilings alone, and with 200 points of it."""
    zero, taught = [], []
    for device, table in tables.items():
        others = {name: held for name, held in tables.items() if name != device}
        model = training.any_gpu(others, "aiconfigurator", "bf16", quick=True).on(load_devices()[device], "bf16")
        rows = usable(table.query("dtype == 'bf16'")).reset_index(drop=True)
        before = score(rows["latency_ms"].to_numpy(), model.predict(rows)["predicted_ms"].to_numpy())
        chosen = teaching(model, rows)
        rest = rows.drop(index=chosen)
        corrected = fine_tuned(model, rows.loc[chosen])
        after = score(rest["latency_ms"].to_numpy(), corrected.predict(rest)["predicted_ms"].to_numpy())
        zero.append(before["mape"])
        taught.append(after["mape"])
        print(f"   {device:14} zero-shot {_words(before)}\n   {'':14} + {_POINTS} points {_words(after)}", flush=True)
    print(f"   mean of {len(zero)}: zero-shot {np.mean(zero):.1f} %, + {_POINTS} points {np.mean(taught):.1f} %")


def teaching(model: CostModel, rows: pd.DataFrame) -> np.ndarray:
    """Return which rows teach most."""
    return farthest_first(inputs.frames(rows, model.chip)[1].to_numpy(), _POINTS)


def convolutions(tables: dict[str, pd.DataFrame]) -> None:
    """Print the error on unseen shapes of fp32 convolutions."""
    found = []
    for device, table in tables.items():
        rows = usable(table[table["op"] == "conv2d"]).reset_index(drop=True)
        if len(rows) < fitting.LEAST_ROWS:
            continue
        said = unseen(rows, Chip.of(load_devices()[device], "fp32"), shapes_of(rows))
        own = score(rows["latency_ms"].to_numpy(), said)
        found.append(own["mape"])
        print(f"   fp32 convolutions, {device:16} unseen shapes: {_words(own)}", flush=True)
    print(f"   mean of {len(found)}: {np.mean(found):.1f} %")


def attention(path: Path | None) -> None:
    """Print the error of the power of attention on the B200, on unseen heads and on unseen shapes, beside simpler learners."""
    with wheel.data_folder(path) as folder:
        tables = attention_power.read(folder)
    if "b200" not in tables:
        print(f"   skipped: {path} has no power of attention on the B200")
        return
    chip = Chip.of(load_devices()["b200"], "bf16")
    _, scores = power_training.fit("b200", power_training.usable(tables["b200"], chip), chip, kind=ATTENTION)
    for row in scores[scores["family"].str.contains("long windows")].to_dict("records"):
        covered = f", 90 % intervals cover {row['cover']:.1f} %" if row["cover"] == row["cover"] else ""
        print(f"   watts of attention on the B200, {row['family']}: {row['learner']}: {_words(row)}{covered}", flush=True)


def main() -> None:
    """Print what can be judged with the data that are here."""
    if (SHARED / "neusight").is_dir():
        convolutions(importers.neusight(SHARED / "neusight"))
    else:
        print(f"   skipped: {SHARED / 'neusight'} is not there")
    wheels = sorted(SHARED.glob("aiconfigurator_core-*.whl"))
    if wheels:
        attention(wheels[-1])
    try:
        tables = importers.aiconfigurator()
        if not wheels:
            attention(None)
    except InputError:
        folder = SHARED / "aiconfigurator"
        if not folder.is_dir():
            print(f"   skipped: neither the package aiconfigurator-core nor {folder} is there")
            return
        tables = importers.aiconfigurator(folder)
    products(tables)
    if len(tables) > 3:
        left_out(tables)
