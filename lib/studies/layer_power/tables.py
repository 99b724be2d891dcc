"""The tables of layer power (an engine's layers, power brought to them, what models predict), the numbers of its sentences."""

import numpy as np
import pandas as pd

from lib.report.sentences import KeyNumbers, Numbers
from lib.studies.layer_power.study import ORIGINAL, OURS, Recorded, Study
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models import baselines, predictions
from lib.tensorrt.recordings import synthetic_power

_NAME = 60
_ENOUGH = 10  # windows that hold a sample
_EXCLUDING = "layer_power_excluding_idle_power_micro_watt"


def short(name: str) -> str:
    """Return a layer's name without what its type says already, cut where it is long."""
    plain = name.rpartition("]-[")[2].rstrip("]") or name
    return plain if len(plain) <= _NAME else f"{plain[:_NAME - 1]}…"


def by_kind(recorded: Recorded) -> pd.DataFrame:
    """Return how many layers of each kind an engine has, their exact work, and their share of the time."""
    median_ms = recorded.times.groupby("layer_name")["layer_run_time"].median()
    rows = [{"kind": layer.kind if layer.kind in KINDS.values() else layer.layer_type, "layers": 1, "gmacs": layer.macs / 1e9,
             "mb": np.nan_to_num(layer.bytes) / 1e6, "ms": median_ms.get(layer.name, 0.0)} for layer in recorded.engine.layers]
    table = pd.DataFrame(rows).groupby("kind", as_index=False).sum()
    table = table.eval("share_pct = 100 * ms / ms.sum()").assign(modelled=table["kind"].isin(KINDS.values()))
    return table.sort_values(["modelled", "ms"], ascending=False, ignore_index=True)


def windows(recorded: Recorded) -> pd.DataFrame:
    """Return when layers ran in the first two passes: kind, start_ms and end_ms from the first layer's start."""
    kinds = {layer.name: layer.kind for layer in recorded.engine.layers}
    runs = recorded.times.query("cycle <= 2")
    table = pd.DataFrame({"kind": runs["layer_name"].map(kinds), **{
        f"{end}_ms": 1e3 * (runs[f"{end}_s"] - recorded.times["start_s"].min()) for end in ("start", "end")}})
    return table.dropna(subset="kind")


def samples(recorded: Recorded) -> pd.DataFrame:
    """Return the samples of power in the first passes: ms from the first layer's start, power_w, idle_w; none without a log."""
    if recorded.log is None:
        return pd.DataFrame(columns=["ms", "power_w", "idle_w"])
    table = pd.DataFrame({"ms": 1e3 * (recorded.log.at_s - recorded.times["start_s"].min()), "power_w": recorded.log.power_w,
                          "idle_w": recorded.idle_w})
    return table[table["ms"].between(0, windows(recorded)["end_ms"].max())].reset_index(drop=True)


def recovered(recorded: Recorded) -> pd.DataFrame:
    """Return a row a layer, those with the most samples first: watts above idle by our mapping and by the original's.

    Of synthetic power also the true ones, and both errors in percent.
    """
    if recorded.log is None:
        return pd.DataFrame()
    means = recorded.layerwise.groupby("layer_name", sort=False)
    times = recorded.times
    watts = baselines.original_window_means(times["end_s"].to_numpy(), recorded.log)
    table = pd.DataFrame({"power_w": means[_EXCLUDING].mean() / 1e6, "windows": means[_EXCLUDING].count(),
                          "runtime_ms": means["layer_run_time"].median(),
                          "original_w": pd.Series(watts).groupby(times["layer_name"]).mean() - recorded.idle_w})
    if recorded.power == "synthetic":
        table = table.assign(true_w=synthetic_power.layer_w(recorded.engine, times)).eval("""
            error_pct = 100 * (power_w / true_w - 1)
            original_error_pct = 100 * (original_w / true_w - 1)""")
    return table.rename_axis("layer").rename(index=short).reset_index().sort_values("windows", ascending=False,
                                                                                    ignore_index=True)


def energy(recorded: Recorded) -> pd.DataFrame:
    """Return time, energy above idle and mean power of a pass by kind of layer, from the power brought to the layers.

    A layer without a single sample counts with the mean power of its kind; ``unsampled`` counts such layers.
    """
    means = recorded.layerwise.groupby("layer_name", sort=False).agg(
        power_w=(_EXCLUDING, "mean"), ms=("layer_run_time", "mean")).reset_index()
    means["kind"] = means["layer_name"].map({layer.name: layer.kind for layer in recorded.engine.layers})
    filled_w = means["power_w"].fillna(means.groupby("kind")["power_w"].transform("mean")) / 1e6
    table = means.assign(mj=filled_w * means["ms"], unsampled=means["power_w"].isna()).groupby("kind", as_index=False)[
        ["ms", "mj", "unsampled"]].sum()
    return table.eval("power_w = mj / ms").sort_values("ms", ascending=False, ignore_index=True)


def prediction(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the prediction of an engine's layers as a table to read: short names, µs, the notes apart."""
    shown = rows.dropna(subset="runtime_prediction", ignore_index=True)
    micro = 1e3 * shown[["runtime_prediction", "runtime_low", "runtime_high"]]
    micro.columns = ["runtime_us", "low_us", "high_us"]
    return pd.concat([shown["layer_name"].map(short).rename("layer"), shown["kind"], micro,
                      shown["power_prediction"].rename("power_w")], axis=1)


# ------------------------------------------------------------------------------------------------- numbers of sentences

def recording_numbers(study: Study, kinds: pd.DataFrame, passes: pd.DataFrame) -> Numbers:
    """Return layers with models and without, windows and whether they hold a sample, and where the energy of a pass goes.

    ``kinds``: ``by_kind``, ``passes``: ``energy``.
    """
    power = study.recorded.layerwise[_EXCLUDING]
    return {"network": study.recorded.name, "synthetic": study.recorded.power == "synthetic", "kinds": kinds,
            "modelled": kinds.query("modelled"), "rest": kinds.query("not modelled"),
            "refused": [{"reason": reason} for reason in study.refused], "windows": pd.DataFrame({"sampled": power.notna()}),
            "energy": passes.eval("share = mj / mj.sum()"),
            "mean_w": passes["mj"].sum() / (passes["ms"].sum() or np.nan)}


def recovered_numbers(table: pd.DataFrame) -> Numbers:
    """Return the layers whose true power is known, and absolute errors, %, of those with enough windows."""
    known = table.reindex(columns=["windows", "true_w", "error_pct", "original_error_pct"]).dropna(subset="true_w")
    enough = known["windows"] >= _ENOUGH
    return {"known": known, "enough": known.loc[enough, ["error_pct", "original_error_pct"]].abs(), "least_windows": _ENOUGH,
            "unsampled": (known["windows"] == 0).sum()}


def score_numbers(scores: pd.DataFrame, totals: pd.DataFrame) -> Numbers:
    """Return the errors on networks left out, %: by kind of layer, beside the original's, and of whole networks."""
    names = {OURS: "ours", ORIGINAL: "original", "roofline": "roofline", "mean": "mean"}
    mape = scores.pivot_table(index="kind", columns="model", values="mape", sort=False).reindex(columns=names)
    table = (100 * mape).rename(columns=names).reset_index()
    return {"kinds": table.dropna(subset="ours").eval("ratio = ours / original"),
            "totals": totals.eval("off_pct = 100 * abs(error)\ninside = low_ms <= measured_ms <= high_ms")}


def prediction_numbers(rows: pd.DataFrame) -> Numbers:
    """Return what models predict of an engine; ``rows``: ``predictions.of_engine``."""
    total = predictions.total(rows)
    notes = sorted({part for note in rows["note"] for part in note.split("; ")} - {""})
    return {**total, "device": next(iter(rows["model_device"]), None), "no_power": np.isnan(total["energy_mj"]),
            "notes": "; ".join(notes), "others": total["others"].rename_axis("name").reset_index()}


def searched(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the error with the first setting and with the best, %, a row a kind of layer; ``trials``: ``study.search``."""
    return (100 * trials.set_index("kind")["value"]).groupby("kind", sort=False).agg(["first", "min", "size"]).reset_index()


def key_numbers(results: Study, scores: pd.DataFrame, totals: pd.DataFrame,
                table: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers: name to value, unit and tolerance; ``table`` as for ``recovered_numbers``."""
    power, ours = recovered_numbers(table), scores.query("model == @OURS")
    numbers = {f"{row.kind} layers: error of the runtime": (100 * row.mape, "%") for row in ours.itertuples()}
    numbers["networks: mean error of the time"] = (100 * totals["error"].abs().mean(), "%")
    numbers["layers trained on"] = (len(results.layers), "layers", 0.0)
    if len(power["known"]):
        numbers["synthetic power: median error of the mapping"] = (power["enough"]["error_pct"].median(), "%")
    return numbers
