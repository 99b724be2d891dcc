"""What the roofline study of a device says, in words that are computed from its numbers."""

from collections.abc import Iterable

import pandas as pd

from lib.missing import needs
from lib.predict.analytic import roofline
from lib.predict.analytic.roofline import Roof
from lib.studies.roofline.study import Study


def _listed(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def roof_words(roof: Roof) -> str:
    """Say in words what one roof asks for."""
    caches = [level for level in roof.peak_gbps if level != roof.last]
    knees = "".join(f"; from {level} {roof.knee(level):.1f}" for level in caches)
    return (f"In {roof.dtype}, **{roof.peak_gflops:,.0f} GFLOP/s** of compute stand above {roof.gbps():,.0f} GB/s from "
            f"{roof.last}: work needs {roof.knee():.1f} FLOPs for each byte from there to be bound by arithmetic{knees}."
            + (f" Doubtful, because measured in disturbed moments alone: {_listed(roof.doubtful)}." if roof.doubtful else ""))


def bound_words(frame: pd.DataFrame, what: str) -> str:
    """Say in words what bounds the points, how far below the roof they lie, and which lie above it."""
    if frame.empty:
        return f"There are no points of {what}: nothing usable has been measured here yet."
    near, far = frame.loc[frame["below_roof"].idxmin()], frame.loc[frame["below_roof"].idxmax()]
    bounds = _listed(f"{bound} bounds {count}" for bound, count in frame["bound"].value_counts().items())
    share, least = (f"{1 / row['below_roof']:.0%}" for row in (near, far))
    text = (f"Of {len(frame)} {what}, {bounds}. **{near['label']}** attains most of its roof, {share}; "
            f"**{far['label']}** least, {least}. ")
    if len(frame) == 1:
        text = f"Of {what} there is one point, **{near['label']}**: {bounds}; it attains {share} of its roof. "
    over = roofline.above(frame)
    if over.empty:
        return text + "None lies above its roof."
    return text + (f"**Above the roof**, by up to {1 / over['below_roof'].min() - 1:.0%}: {_listed(over['label'])}. There the "
                   "bytes came from nearer than assumed, or fewer FLOPs were done than counted, or the ceiling is too low.")


@needs("steps or networks to compare")
def ideal_words(table: pd.DataFrame) -> str:
    """Say in words what ``roofstudy.against_operators`` shows."""
    most, least = table.loc[table["memory_bound_pct"].idxmax()], table.loc[table["memory_bound_pct"].idxmin()]
    gap = (table["operators_roof_ms"] / table["roof_ms"]).sort_values()
    low, high = table["times_above"].min(), table["times_above"].max()
    return (f"With every operator at its own roof the work would take {gap.iloc[0]:.1f} to {gap.iloc[-1]:.1f} times what one "
            f"roof for the whole allows; {most['label']} would then spend {most['memory_bound_pct']:.0f} % of its time in "
            f"operators that memory bounds, {least['label']} {least['memory_bound_pct']:.0f} %. Measured times are {low:.1f} "
            f"to {high:.1f} times that sum{'; under 1, caches served what was taken to come from memory' if low < 1 else ''}.")


@needs("timed operators", "networks")
def operator_words(operators: pd.DataFrame, networks: pd.DataFrame) -> str:
    """Say in words how much of a network its operators explain, and which family takes the time."""
    seconds = operators["elapsed_sec"] * operators["occurrences"]
    family = seconds.groupby(operators["family"]).sum().sort_values(ascending=False)
    text = (f"Repeated as often as the network holds them, these operators take {seconds.sum() * 1e3:.1f} ms; "
            f"{family.index[0]} takes {family.iloc[0] / seconds.sum():.0%} of that. ")
    whole = networks[networks["arch"] == operators["arch"].iloc[0]]
    if len(whole):
        share = seconds.sum() / whole["elapsed_sec"].iloc[0]
        text += (f"The whole forward pass of {whole['arch'].iloc[0]} takes {whole['elapsed_sec'].iloc[0] * 1e3:.1f} ms: timed "
                 f"alone and warm, they make up {share:.0%} of it.")
    return text


def learned(found: Study, dtype: str) -> list[str]:
    """Return what the study shows, a sentence or two each."""
    lines = [roof_words(found.roof(dtype)), bound_words(found.steps, "training steps"), bound_words(found.networks, "networks")]
    if len(found.networks) > 1:
        ranked = found.networks.sort_values("ai")
        low, high = ranked.iloc[0], ranked.iloc[-1]
        lines.append(f"{high['arch']} does {high['ai']:.1f} FLOPs a byte and attains {high['attained_gflops']:,.0f} GFLOP/s; "
                     f"{low['arch']} does {low['ai']:.1f} and attains {low['attained_gflops']:,.0f}.")
    return [*lines, bound_words(found.operators, "operators"), *vendor_words(found, dtype)]


def vendor_words(found: Study, dtype: str) -> list[str]:
    """Return a sentence that sets a vendor's device beside this one, or none."""
    if not found.vendor:
        return []
    stated, mine = {roof.dtype: roof for roof in found.vendor}.get(dtype), found.roof(dtype)
    if not stated:
        return [f"The vendor of {found.vendor[0].device} states no {dtype} rate."]
    return [f"{stated.device} is stated at {stated.peak_gflops:,.0f} GFLOP/s and {stated.gbps():,.0f} GB/s in {dtype}: "
            f"{stated.peak_gflops / mine.peak_gflops:.1f} and {stated.gbps() / mine.gbps():.1f} times what was measured here."]
