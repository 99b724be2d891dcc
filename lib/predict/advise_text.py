"""Advice in words and tables, for the command line and the notebook."""

from collections.abc import Sequence

import pandas as pd

from lib.predict.advise import Advice, Change, Question, advise

_SHOWN = {"device": "device", "source": "source", "predicted_ms": "ms", "low_ms": "low", "high_ms": "high",
          "images_per_sec": "images/s", "memory_mb": "MB", "bound": "bound", "below_roof": "x below roof", "fits": "fits",
          "out_of_range": "outside", "measured_ms": "measured ms", "price_per_million": "price / 10^6 images"}


def table(found: Advice) -> pd.DataFrame:
    """Return the devices as people read them; columns that say nothing are left out."""
    shown = found.table[list(_SHOWN)].rename(columns=_SHOWN)
    return shown.dropna(axis=1, how="all")


def heading(found: Advice) -> str:
    """Say what was asked."""
    asked = found.question
    what = "a training step (forward, loss, backward)" if asked.mode == "train" else "a forward pass"
    return f"{asked.model}, {what} of {found.batch_size} samples, {asked.dtype}"


def text(found: Advice) -> str:
    """Return the whole answer for a terminal."""
    body = table(found).to_string(index=False, float_format=lambda value: f"{value:,.4g}")
    lines = [heading(found), "", body, "", f"recommended: {found.reason}"]
    if len(found.crossovers) > 1:
        lines.append("by batch size: " + "; ".join(found.crossovers))
    if found.table["out_of_range"].any():
        lines.append("outside: more than a twentieth of the time lies outside of what the device's model learned; "
                     "its interval is widened, not proven")
    return "\n".join(lines)


def answer(**question) -> tuple[pd.DataFrame, str]:
    """Return the table and the recommendation for the fields of a Question."""
    found = advise(Question(**question), crossovers=False)
    return table(found), f"{heading(found)}. {found.reason}."


def changes(several: Sequence[Change]) -> str:
    """Return what to change as lines for a terminal; gains are factors of images a second."""
    lines = ["", "what to change (factor of images a second):"]
    for change in several:
        gain = f"{change.predicted_gain:.2f}" if change.predicted_gain == change.predicted_gain else "  ? "  # noqa: PLR0124 - NaN
        measured = f", measured {change.measured_gain:.2f}" if change.measured_gain == change.measured_gain else ""  # noqa: PLR0124
        lines.append(f"  {gain}{measured}  {change.what}: {change.why}")
    return "\n".join(lines)


def changes_table(several: Sequence[Change]) -> pd.DataFrame:
    """Return what to change as a table."""
    return pd.DataFrame([{"change": change.what, "predicted gain": change.predicted_gain, "measured gain": change.measured_gain,
                          "why": change.why} for change in several])


def verdict(found: Advice, measured_ms: float) -> str:
    """Say whether the interval of this machine's CPU held what was measured."""
    mine = found.table[found.table["device"] == "cpu"]
    if not len(mine):
        return f"\nmeasured on this machine's CPU: {measured_ms:,.4g} ms"
    row = mine.iloc[0]
    held = "inside" if row["low_ms"] <= measured_ms <= row["high_ms"] else "OUTSIDE"
    return (f"\nmeasured on this machine's CPU: {measured_ms:,.4g} ms, {held} the interval {row['low_ms']:,.4g} to "
            f"{row['high_ms']:,.4g}; the prediction was off by {row['predicted_ms'] / measured_ms - 1:+.1%}")
