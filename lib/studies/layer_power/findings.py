"""Numbers of layer power, for the sentences of 08_layer_power, and its key numbers."""

import numpy as np
import pandas as pd

from lib.report.sentences import Numbers, first
from lib.studies.layer_power.study import ORIGINAL, OURS, Study
from lib.tensorrt.models import predictions

_ENOUGH = 10  # windows that hold a sample


def recorded(study: Study, kinds: pd.DataFrame, energy: pd.DataFrame) -> Numbers:
    """Return the share of layers that models exist for, of windows that hold a sample, and where a pass's energy goes.

    ``kinds``: ``tables.by_kind``, ``energy``: ``tables.energy``.
    """
    modelled, rest = kinds[kinds["modelled"]], kinds[~kinds["modelled"]]
    sampled = study.recorded.layerwise["layer_power_including_idle_power_micro_watt"].notna()
    return {"network": study.recorded.name, "synthetic": study.recorded.power == "synthetic", "layers": kinds["layers"].sum(),
            "modelled": modelled["layers"].sum(), "modelled_pct": modelled["share_pct"].sum(), "gmacs": modelled["gmacs"].sum(),
            "rest": rest, "refused": [{"reason": reason} for reason in study.refused], "windows": len(sampled) or None,
            "sampled": sampled.sum(), "sampled_share": sampled.mean(),
            "pass_ms": energy["ms"].sum(), "pass_mj": energy["mj"].sum() or None,
            "mean_w": energy["mj"].sum() / (energy["ms"].sum() or np.nan),
            **first(energy.assign(share=energy["mj"] / energy["mj"].sum()), "longest_")}


def recovered(table: pd.DataFrame) -> Numbers:
    """Return how far the mapping is from the truth of synthetic power, %; ``table``: ``study.recovered``."""
    known = table.reindex(columns=["windows", "power_w", "original_w", "true_w"]).dropna(subset="true_w")
    enough = known[known["windows"] >= _ENOUGH]
    error, original = (100 * (enough[name] / enough["true_w"] - 1).abs() for name in ("power_w", "original_w"))
    return {"known": len(known) > 0, "layers": len(known), "enough": len(enough), "least_windows": _ENOUGH,
            "median_pct": error.median(), "worst_pct": error.max(), "original_pct": original.median(),
            "unsampled": int((known["windows"] == 0).sum())}


def scored(scores: pd.DataFrame, totals: pd.DataFrame) -> Numbers:
    """Return the errors on networks left out: by kind of layer, beside the original's, and of whole networks."""
    names = {OURS: "ours", ORIGINAL: "original", "roofline": "roofline", "mean": "mean"}
    mape = scores.pivot_table(index="kind", columns="model", values="mape", sort=False).reindex(columns=names)
    table = (100 * mape).rename(columns=names).reset_index()
    table = table[table["ours"].notna()].assign(ratio=table["ours"] / table["original"])
    inside, errors = totals["measured_ms"].between(totals["low_ms"], totals["high_ms"]), 100 * totals["error"].abs()
    return {"kinds": table, "ours_low": table["ours"].min(), "ours_high": table["ours"].max(),
            "ratio_low": table["ratio"].min(), "ratio_high": table["ratio"].max(), "mean_pct": errors.mean(),
            "median_pct": errors.median(),
            "inside": int(inside.sum()), "networks": len(totals),
            **first(totals.assign(off=errors).sort_values("off", ascending=False), "farthest_")}


def predicted(rows: pd.DataFrame) -> Numbers:
    """Return what models predict of an engine; ``rows``: ``predictions.of_engine``."""
    total = predictions.total(rows)
    notes = sorted({part for note in rows["note"] for part in note.split("; ")} - {""})
    return {"covered": total.covered, "device": next(iter(rows["model_device"]), None), "runtime_ms": total.runtime_ms,
            "low_ms": total.low_ms, "high_ms": total.high_ms, "power_w": total.power_w, "energy_mj": total.energy_mj,
            "no_power": bool(np.isnan(total.energy_mj)), "notes": "; ".join(notes),
            "others": [{"name": name, "count": count} for name, count in total.others.items()]}


def searched(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the error with the first setting and with the best, %, a row a kind of layer; ``trials``: ``study.search``."""
    return (100 * trials.set_index("kind")["value"]).groupby("kind", sort=False).agg(["first", "min", "size"]).reset_index()


def key_numbers(results: Study, scores: pd.DataFrame, totals: pd.DataFrame,
                table: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers: name to value, unit and tolerance; ``table`` as for ``recovered``."""
    ours = scores[scores["model"] == OURS]
    numbers = {f"{row.kind} layers: error of the runtime": (100 * row.mape, "%", 0.001) for row in ours.itertuples()}
    numbers["networks: mean error of the time"] = (scored(scores, totals)["mean_pct"], "%", 0.001)
    numbers["layers trained on"] = (len(results.layers), "layers", 0.0)
    power = recovered(table)
    if power["known"]:
        numbers["synthetic power: median error of the mapping"] = (power["median_pct"], "%", 0.001)
    return numbers
