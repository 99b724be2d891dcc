"""What layer power says, in words that are computed from its numbers; and the key numbers."""

import numpy as np
import pandas as pd

from lib.missing import MissingError, needs
from lib.studies.layer_power.study import ORIGINAL, OURS, Study
from lib.tensorrt.models import predictions

_ENOUGH = 10


@needs("layers")
def engine_words(kinds: pd.DataFrame) -> str:
    """Say how much of the time is of layers that models exist for; ``kinds``: ``tables.by_kind``."""
    modelled = kinds[kinds["modelled"]]
    rest = kinds[~kinds["modelled"]]
    text = (f"{modelled['layers'].sum()} of {kinds['layers'].sum()} layers are convolutional, pooling or dense: "
            f"**{modelled['share_pct'].sum():.0f} %** of the layers' time, {modelled['gmacs'].sum():.2f} GMAC. ")
    if len(rest):
        others = ", ".join(f"{row.layers} {row.kind} ({row.share_pct:.0f} %)" for row in rest.itertuples())
        text += f"Without a model: {others}."
    return text


@needs("layers with power")
def coverage_words(layerwise: pd.DataFrame) -> str:
    """Say how many windows hold a sample, and what that means for short layers; ``layerwise``: a row a cycle and layer."""
    sampled = layerwise["layer_power_including_idle_power_micro_watt"].notna()
    return (f"{sampled.sum():,} of {len(sampled):,} windows hold a sample ({sampled.mean():.0%}). A layer shorter than the "
            "log's period is hit in some passes only: its power is the mean of those, and empty where there is none.")


@needs("layers with power")
def recovered_words(table: pd.DataFrame) -> str:
    """Say how far the mapping is from the truth, where the truth is known; ``table``: ``study.recovered``."""
    if "true_w" not in table:
        raise MissingError("known true power: the recorded power is measured")
    enough = table[table["windows"] >= _ENOUGH]
    if enough.empty:
        raise MissingError(f"layers with {_ENOUGH} windows that hold a sample")
    error = (enough["power_w"] / enough["true_w"] - 1).abs()
    original = (enough["original_w"] / enough["true_w"] - 1).abs()
    return (f"Of {len(table)} layers {len(enough)} have {_ENOUGH} windows with samples or more. Their synthetic power is "
            f"recovered to within **{100 * error.median():.1f} %** at the median ({100 * error.max():.1f} % at most); by the "
            f"original's mapping to within {100 * original.median():.0f} %. {int((table['windows'] == 0).sum())} layers have "
            "no sample at all, and no power.")


@needs("scores")
def score_words(scores: pd.DataFrame) -> str:
    """Say how the model compares with the original pipeline and the baselines."""
    lines = []
    for kind, part in scores.groupby("kind", sort=False):
        mape = part.set_index("model")["mape"].reindex([OURS, ORIGINAL, "roofline", "mean"])
        if np.isnan(mape[OURS]):
            continue
        original = mape.get(ORIGINAL, np.nan)
        beside = f"{mape[OURS] / original:.2f} times the original pipeline's {100 * original:,.0f} %; " if original > 0 else ""
        others = ", ".join(f"{name} {100 * mape[name]:,.0f} %" for name in ("roofline", "mean") if mape[name] > 0)
        lines.append(f"- {kind}: **{100 * mape[OURS]:.1f} %**; {beside}{others}")
    if not lines:
        raise MissingError("scores of our models")
    return "Mean error of the runtime of layers whose network was left out:\n\n" + "\n".join(lines)


@needs("networks")
def total_words(totals: pd.DataFrame) -> str:
    """Say how far whole networks are from their prediction."""
    inside = ((totals["measured_ms"] >= totals["low_ms"]) & (totals["measured_ms"] <= totals["high_ms"])).sum()
    far = totals.loc[totals["error"].abs().idxmax()]
    return (f"The layers of a network together are predicted to within {100 * totals['error'].abs().mean():.1f} % on average; "
            f"the farthest is {far['network']} ({100 * far['error']:+.0f} %). {inside} of {len(totals)} lie within the sum of "
            "their layers' intervals, which is wide because it takes all errors to go the same way.")


def refusals(results: Study) -> str:
    """Say which models could not be trained, and why."""
    if not results.refused:
        return "Every kind of layer has measured rows of runtime and power."
    return "Not trained, as power and runtime are learned from measured rows alone:\n\n" + "\n".join(
        f"- {reason}" for reason in results.refused)


@needs("energy")
def energy_words(energy: pd.DataFrame, network: str, power: str) -> str:
    """Say what a pass of the recorded network takes, and where it goes."""
    made = " (synthetic power)" if power == "synthetic" else ""
    most = energy.iloc[0]
    return (f"A pass of {network} takes {energy['ms'].sum():.1f} ms and **{energy['mj'].sum():.0f} mJ** above "
            f"idle{made}, {energy['mj'].sum() / energy['ms'].sum():.1f} W on average; {most['kind']} layers take "
            f"{most['mj'] / energy['mj'].sum():.0%} of the energy.")


@needs("layers")
def prediction_words(rows: pd.DataFrame) -> str:
    """Say what models predict of an engine; ``rows``: ``predictions.of_engine``."""
    total = predictions.total(rows)
    if not total.covered:
        return "None of the engine's layers has a model."
    power = "power is not known, as none was measured there" if np.isnan(total.energy_mj) else \
        f"{total.power_w:.1f} W above idle, {total.energy_mj:.1f} mJ"
    others = ", ".join(f"{count} {name}" for name, count in total.others.items()) or "none"
    notes = "; ".join(sorted({part for note in rows["note"] for part in note.split("; ")} - {""}))
    device = rows["model_device"].iloc[0]
    return (f"On {device} the {total.covered} layers with a model would take **{total.runtime_ms:.3f} ms** "
            f"({total.low_ms:.3f} to {total.high_ms:.3f}); {power}. Layers without a model: {others}. {notes}.")


@needs("search")
def search_words(trials: pd.DataFrame) -> str:
    """Say what a search found; it changes nothing until somebody puts it into the params file."""
    lines = [f"- {kind}: RMSPE {100 * part['value'].iloc[0]:.1f} % with the first setting, {100 * part['value'].min():.1f} % "
             f"with the best of {len(part)} trials" for kind, part in trials.groupby("kind", sort=False)]
    return ("On the training networks alone, each left out in turn:\n\n" + "\n".join(lines)
            + "\n\n`python -m lib layer-power tune` writes such a choice to `params/layer_power.yaml`.")


@needs("scores", "totals")
def learned_words(scores: pd.DataFrame, totals: pd.DataFrame) -> str:
    """Say what was learned, a line each."""
    mape = scores.pivot_table(index="kind", columns="model", values="mape").reindex(columns=[OURS, ORIGINAL])
    if mape[OURS].isna().all():
        raise MissingError("scores of our models")
    better = (mape[OURS] / mape[ORIGINAL]).dropna()
    beside = f", {better.min():.2f} to {better.max():.2f} times the error of polynomials of shapes" if len(better) else ""
    lines = [f"Counted work explains layers of unseen networks to within {100 * mape[OURS].min():.0f} to "
             f"{100 * mape[OURS].max():.0f} %{beside}."]
    if len(totals):
        lines.append(f"Errors of layers cancel in a network: {100 * totals['error'].abs().median():.0f} % at the median.")
    lines.append("Power needs a meter: a model of it is made of measured rows, or there is none.")
    return "\n".join(f"- {line}" for line in lines)


def key_numbers(results: Study, scores: pd.DataFrame, totals: pd.DataFrame, recovered: pd.DataFrame,
                exact: bool) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce."""
    tolerance = 0.001 if exact else None
    ours = scores[scores["model"] == OURS] if len(scores) else scores
    numbers = {f"{row.kind} layers: error of the runtime": (100 * row.mape, "%", tolerance) for row in ours.itertuples()}
    numbers["networks: mean error of the time"] = (100 * totals["error"].abs().mean(), "%", tolerance)
    numbers["layers trained on"] = (len(results.layers), "layers", 0.0 if exact else None)
    if "true_w" in recovered:
        enough = recovered[recovered["windows"] >= _ENOUGH]
        error = 100 * (enough["power_w"] / enough["true_w"] - 1).abs().median()
        numbers["synthetic power: median error of the mapping"] = (error, "%", tolerance)
    return numbers
