"""What the roofline study of a device says, in words that are computed from its numbers, and its key numbers."""

from collections.abc import Iterable

import pandas as pd

from lib.missing import needs
from lib.predict.analytic.roofline import Roof
from lib.studies.roofline.study import Study
from lib.studies.roofline.tables import percent


def _listed(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def roof_words(roof: Roof) -> str:
    """Say in words what one roof asks for."""
    caches = [level for level in roof.peak_gbps if level != roof.last]
    ridges = "".join(f"; from {level} {roof.ridge_point(level):.1f}" for level in caches)
    return (f"In {roof.dtype}, **{roof.peak_gflops:,.0f} GFLOP/s** of compute stand above {roof.gbps():,.0f} GB/s from "
            f"{roof.last}: work needs {roof.ridge_point():.1f} FLOPs for each byte from there to be bound by arithmetic"
            f"{ridges}."
            + (f" Doubtful, because measured in disturbed moments alone: {_listed(roof.doubtful)}." if roof.doubtful else ""))


def above(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points above their roof: their bytes were moved less often, or from nearer, than was assumed."""
    return points[percent(points) > 100]


def bound_words(points: pd.DataFrame, what: str) -> str:
    """Say in words what bounds the points, what share of attainable performance they attain, and which lie above their roof."""
    if points.empty:
        return f"There are no points of {what}: nothing usable has been measured here yet."
    share = percent(points)
    near, far = share.idxmax(), share.idxmin()
    bounds = _listed(f"{bound} bounds {count}" for bound, count in points["bound"].value_counts().items())
    text = (f"Of {len(points)} {what}, {bounds}. **{points['label'][near]}** attains most of its attainable performance, "
            f"{share[near]:.0f} %; **{points['label'][far]}** least, {share[far]:.0f} %. ")
    if len(points) == 1:
        text = (f"Of {what} there is one point, **{points['label'][near]}**: {bounds}; it attains {share[near]:.0f} % of its "
                "attainable performance. ")
    over = above(points)
    if over.empty:
        return text + "None lies above its roof."
    return text + (f"**Above the roof**, by up to {percent(over).max() - 100:.0f} %: {_listed(over['label'])}. There the "
                   "bytes came from nearer than assumed, or fewer FLOPs were done than counted, or the ceiling is too low.")


@needs("steps or networks to compare")
def ideal_words(table: pd.DataFrame) -> str:
    """Say in words what ``study.against_operators`` shows."""
    most, least = table.loc[table["memory_bound_pct"].idxmax()], table.loc[table["memory_bound_pct"].idxmin()]
    gap = (table["operators_roof_ms"] / table["roof_ms"]).sort_values()
    low, high = table["over_operators"].min(), table["over_operators"].max()
    return (f"With every operator at its own roof the work would take {gap.iloc[0]:.1f} to {gap.iloc[-1]:.1f} times what one "
            f"roof for the whole allows; {most['label']} would then spend {most['memory_bound_pct']:.0f} % of its time in "
            f"operators that memory bounds, {least['label']} {least['memory_bound_pct']:.0f} %. Measured times are {low:.1f} "
            f"to {high:.1f} times that sum{'; under 1, caches served what was taken to come from memory' if low < 1 else ''}.")


@needs("timed operators", "networks")
def operator_words(operators: pd.DataFrame, networks: pd.DataFrame) -> str:
    """Say in words how much of a network its operators explain, and which family takes the time."""
    seconds = operators["elapsed_sec"] * operators["occurrences"]
    family = seconds.groupby(operators["family"]).sum().sort_values(ascending=False)
    text = (f"Repeated as often as they occur in the network, these operators take {seconds.sum() * 1e3:.1f} ms; "
            f"{family.index[0]} takes {family.iloc[0] / seconds.sum():.0%} of that. ")
    same = networks[networks["arch"] == operators["arch"].iloc[0]]
    if len(same):
        end_to_end = same["elapsed_sec"].iloc[0]
        text += (f"The forward pass of {same['arch'].iloc[0]} takes {end_to_end * 1e3:.1f} ms end to end: timed in isolation "
                 f"and warm, its operators make up {seconds.sum() / end_to_end:.0%} of it.")
    return text


def learned_words(results: Study, compared: pd.DataFrame, dtype: str) -> str:
    """Say what the roofline explains and what it leaves, a line each; ``compared`` as ``study.against_operators`` gives it."""
    lines = [_ridge(results, dtype), *_gap(compared), *_families(results.operators), *_vendor(results, dtype)]
    return "\n".join(f"- {line}" for line in lines)


def _ridge(results: Study, dtype: str) -> str:
    roof = results.roof(dtype)
    right = int((results.whole["ai"] >= roof.ridge_point()).sum())
    text = f"The ridge point of {dtype} lies at {roof.ridge_point():.1f} FLOP/byte."
    if results.whole.empty:
        return text
    return text + (f" By their mean intensity {right} of {len(results.whole)} steps and networks lie to its right, where "
                   "arithmetic should bound them.")


def _gap(compared: pd.DataFrame) -> list[str]:
    """Split the distance from the roof into alternation between operators, and operators that miss their own roofs."""
    if compared.empty:
        return []
    total, alternating = (compared["measured_ms"] / compared["roof_ms"]), (compared["operators_roof_ms"] / compared["roof_ms"])
    rest = compared["over_operators"].median()
    return [f"At the median they take {total.median():.1f} times what one roof allows. A factor of {alternating.median():.1f} "
            f"of that is explained: operators that memory bounds run between those that arithmetic bounds. The other "
            f"{rest:.1f} is not in the roofline: operators miss their own roofs, and something runs between them."]


def _families(operators: pd.DataFrame) -> list[str]:
    if operators.empty:
        return []
    share = percent(operators).groupby(operators["family"]).median().sort_values()
    seconds = (operators["elapsed_sec"] * operators["occurrences"]).groupby(operators["family"]).sum()
    (least, most), part = share.index[[0, -1]], seconds / seconds.sum()
    return [f"In isolation {most} attains most ({share[most]:.0f} % of attainable performance at the median), {least} least "
            f"({share[least]:.0f} %). But {least} is {part[least]:.0%} of the operators' time, and {part.idxmax()} "
            f"{part.max():.0%}: there a faster kernel would tell."]


def _vendor(results: Study, dtype: str) -> list[str]:
    """Return a sentence that sets a vendor's device beside this one, or none."""
    if not results.vendor:
        return []
    stated, own = {roof.dtype: roof for roof in results.vendor}.get(dtype), results.roof(dtype)
    if not stated:
        return [f"The vendor of {results.vendor[0].device} states no {dtype} rate."]
    return [f"{stated.device} is stated at {stated.peak_gflops:,.0f} GFLOP/s and {stated.gbps():,.0f} GB/s in {dtype}: "
            f"{stated.peak_gflops / own.peak_gflops:.1f} and {stated.gbps() / own.gbps():.1f} times what was measured here."]


def key_numbers(results: Study, compared: pd.DataFrame, dtype: str, exact: bool) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers, name to value, unit and tolerance; ``exact`` for a replay, which must reproduce."""
    tolerance, name = 0.001 if exact else None, results.roofs[0].device.replace(":", "-")
    over = len(above(results.whole)) + len(above(results.operators))
    numbers = {f"{name} {dtype} ridge point": (results.roof(dtype).ridge_point(), "FLOP/byte"),
               f"{name} training steps": (len(results.steps), "points"),
               f"{name} points above their roof": (over, "points"),
               f"{name} largest share of attainable performance": (percent(results.whole).max(), "%"),
               f"{name} largest memory-bound share": (compared["memory_bound_pct"].max(), "%")}
    numbers |= {f"{label}: share of attainable performance": (share, "%")
                for label, share in zip(results.steps["label"], percent(results.steps), strict=True)}
    return {key: (*number, tolerance) for key, number in numbers.items()}
