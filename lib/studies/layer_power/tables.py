"""The tables of layer power: an engine's layers, power brought to them, and what models predict."""

import numpy as np
import pandas as pd

from lib.studies.layer_power.study import Recorded
from lib.tensorrt.engine import KINDS

_NAME = 60


def short(name: str) -> str:
    """Return a layer's name without what its type says already, cut where it is long."""
    plain = name.rpartition("]-[")[2].rstrip("]") or name
    return plain if len(plain) <= _NAME else f"{plain[:_NAME - 1]}…"


def by_kind(recorded: Recorded) -> pd.DataFrame:
    """Return how many layers of each kind an engine has, their exact work, and their share of the time."""
    rows = [{"kind": layer.kind if layer.kind in KINDS.values() else layer.layer_type, "layers": 1, "gmacs": layer.macs / 1e9,
             "mb": np.nan_to_num(layer.bytes) / 1e6,
             "ms": float(np.median(recorded.times[layer.name].latency_ms)) if layer.name in recorded.times else 0.0}
            for layer in recorded.engine.layers]
    table = pd.DataFrame(rows).groupby("kind", as_index=False).sum()
    modelled = table["kind"].isin(KINDS.values())
    return (table.assign(share_pct=100 * table["ms"] / table["ms"].sum(), modelled=modelled)
            .sort_values(["modelled", "ms"], ascending=False, ignore_index=True))


def windows(recorded: Recorded, passes: int = 2) -> pd.DataFrame:
    """Return when layers ran in the first passes: kind, start_ms and end_ms from the first layer's start."""
    rows = [{"kind": layer.kind, "start_ms": 1e3 * (end_s - latency_ms / 1e3), "end_ms": 1e3 * end_s}
            for layer in recorded.engine.layers if (times := recorded.times.get(layer.name)) is not None
            for end_s, latency_ms in zip(times.end_s[:passes], times.latency_ms[:passes], strict=True)]
    table = pd.DataFrame(rows)
    return table.assign(start_ms=table["start_ms"] - table["start_ms"].min(), end_ms=table["end_ms"] - table["start_ms"].min())


def samples(recorded: Recorded, passes: int = 2) -> pd.DataFrame:
    """Return the samples of power in the first passes: ms from the first layer's start, power_w, idle_w; none without a log."""
    columns = ["ms", "power_w", "idle_w"]
    if recorded.log is None:
        return pd.DataFrame(columns=columns)
    first_ms = min(1e3 * times.end_s[0] - times.latency_ms[0] for times in recorded.times.values())
    table = pd.DataFrame({"ms": 1e3 * recorded.log.at_s - first_ms, "power_w": recorded.log.power_w, "idle_w": recorded.idle_w})
    return table[table["ms"].between(0, windows(recorded, passes)["end_ms"].max())].reset_index(drop=True)


def power(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``study.recovered`` with short names and errors in percent; the layers with the most windows first."""
    shown = table.assign(layer=table["layer"].map(short))
    if "true_w" in shown:
        shown["error_pct"] = 100 * (shown["power_w"] / shown["true_w"] - 1)
        shown["original_error_pct"] = 100 * (shown["original_w"] / shown["true_w"] - 1)
    return shown.sort_values("windows", ascending=False, ignore_index=True)


def energy(recorded: Recorded) -> pd.DataFrame:
    """Return time, energy above idle and mean power of a pass by kind of layer, from the power brought to the layers.

    A layer without a single sample counts with the mean power of its kind; ``unsampled`` counts such layers.
    """
    means = recorded.layerwise.groupby(["layer_name", "layer_type"], sort=False).agg(
        power_w=("layer_power_excluding_idle_power_micro_watt", "mean"), ms=("layer_run_time", "mean")).reset_index()
    means["power_w"] /= 1e6
    means["kind"] = means["layer_type"].map(KINDS).fillna("other")
    filled = means["power_w"].fillna(means.groupby("kind")["power_w"].transform("mean"))
    table = means.assign(mj=filled * means["ms"], unsampled=means["power_w"].isna()).groupby("kind", as_index=False)[
        ["ms", "mj", "unsampled"]].sum()
    return table.assign(power_w=table["mj"] / table["ms"]).sort_values("ms", ascending=False, ignore_index=True)


def prediction(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the prediction of an engine's layers as a table to read: short names, µs, the notes apart."""
    shown = rows[rows["runtime_prediction"].notna()]
    return pd.DataFrame({"layer": shown["layer_name"].map(short), "kind": shown["kind"],
                         "runtime_us": 1e3 * shown["runtime_prediction"], "low_us": 1e3 * shown["runtime_low"],
                         "high_us": 1e3 * shown["runtime_high"], "power_w": shown["power_prediction"]}).reset_index(drop=True)
