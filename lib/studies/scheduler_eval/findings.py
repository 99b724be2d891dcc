"""Numbers of the scheduler's evaluation, for the sentences of 07_scheduler_eval, and its key numbers."""

import numpy as np
import pandas as pd

from lib.missing import needs
from lib.report.sentences import Numbers, first
from lib.schedule.contention import ALONE
from lib.schedule.runtime.run_record import RunRecord

_LITTLE = 0.05  # of the best single-device makespan: less than that is little to win
_SAME = 1e-6  # relative tolerance: schedules are the same on any machine
_SIGMA, _DRIFT = 0.3, 0.2  # of the wrong predictions that are told of


def _means(table: pd.DataFrame, column: str = "ratio") -> pd.DataFrame:
    """Return the mean of a column by policy."""
    return table.groupby("policy", sort=False)[column].mean().reset_index()


def _nearest(table: pd.DataFrame, column: str, value: float) -> pd.DataFrame:
    """Return the rows whose column is nearest to a value."""
    away = (table[column] - value).abs()
    return table[away == away.min()]


def _of_hybrid(results: pd.DataFrame) -> pd.DataFrame:
    return results[results["policy"] == "hybrid"].groupby("mix", sort=False).mean(numeric_only=True).reset_index()


@needs("schedules")
def near_bound(results: pd.DataFrame) -> Numbers:
    """Return how far from the bound hybrid is, what could be won, and where that is little, by mix."""
    mixes = _of_hybrid(results)
    mixes = mixes.assign(little=mixes["room"] < _LITTLE, above=mixes["ratio"] - 1)
    ranked = mixes.sort_values("room")
    return {"mixes": mixes, "poor": "; ".join(mixes.loc[mixes["little"], "mix"]), **first(ranked, "least_"),
            **first(ranked.iloc[::-1], "most_")}


def waiting(completion: pd.DataFrame, loads: pd.DataFrame) -> Numbers:
    """Return completion times: over the least possible by order, and at the highest load over those of first-come."""
    top = loads[loads["load"] == loads["load"].max()].groupby("policy", sort=False)[["mean_jct_s", "p99_jct_s"]].mean()
    over = (top / top.reindex(["first-come"]).to_numpy()).drop("first-come", errors="ignore")
    return {"orders": _means(completion), "load": loads["load"].max(), "over_first": over.reset_index()}


def wrong(noise: pd.DataFrame, stale: pd.DataFrame, uncertain: pd.DataFrame, adversarial: pd.DataFrame) -> Numbers:
    """Return makespans over the bound by the way in which predictions are wrong, and over the best policy without any."""
    single, shared, largest = (_nearest(noise, "sigma", _SIGMA), _nearest(stale, "drift", _DRIFT),
                               noise[noise["sigma"] == noise["sigma"].max()])
    swapped = _means(adversarial, "over_blind")
    return {"sigma": single["sigma"].max(), "drift": shared["drift"].max(), "perfect": _means(noise[noise["sigma"] == 0]),
            "single": _means(single), "shared": _means(shared), "uncertain": _means(uncertain),
            "swapped": swapped[~swapped["policy"].str.contains("blind|perfect")], "largest": noise["sigma"].max(),
            "blind": swapped.set_index("policy")["over_blind"].get("hybrid, blind"), "errors": _means(largest)}


def trade(front: pd.DataFrame) -> Numbers:
    """Return what energy costs in time on the front, and on what the joules rest."""
    ours = front[(front["policy"] == "hybrid") & front["front"]].sort_values("makespan_s")
    values = ours[["energy_j", "makespan_s"]].reindex(ours.index if len(ours) else [0])
    change, sources = values.iloc[-1] / values.iloc[0] - 1, set(ours["energy_source"])
    return {"some": len(ours) > 1, "fast_mj": values["energy_j"].iloc[0] / 1e6, "saved": -change["energy_j"],
            "longer": change["makespan_s"], "assumed": sources == {"assumed"}, "sources": "; ".join(sorted(sources))}


def interference(table: pd.DataFrame, cost: pd.DataFrame, cores: pd.DataFrame) -> Numbers:
    """Return how much jobs slow each other down, and what ignoring it, or the cores of the host, costs ``hybrid``."""
    pairs = table[table["beside"] != ALONE[0]].sort_values("slowdown", ascending=False, kind="stable")
    known = cost[cost["policy"] == "hybrid"].groupby("known")[["error", "makespan_s"]].mean().reindex(
        ["nothing", "the mean", "every pair"])
    span_s = cores.pivot_table(index="host_cores", columns="cores", values="makespan_s").reindex(columns=["ignored", "counted"])
    lost = (span_s["ignored"] / span_s["counted"] - 1).sort_values(ascending=False)
    nothing, mean, every = known["error"]
    return {"median": pairs["slowdown"].median(), **first(pairs, "worst_"), "error_nothing": nothing, "error_mean": mean,
            "error_every": every, "shorter": 1 - known["makespan_s"]["every pair"] / known["makespan_s"]["nothing"],
            **first(lost.rename("lost").reset_index())}


def real(record: RunRecord) -> Numbers:
    """Return how the real run went against the simulated one."""
    jobs, schedule = record.jobs(), record.schedule
    off = (jobs["actual_s"] / jobs["predicted_s"] - 1).abs()
    return {"done": len(jobs) or None, "jobs": len(record.ends), "makespan_s": record.makespan_s,
            "simulated_s": record.simulated_s, "late": record.makespan_s / record.simulated_s - 1,
            "off_median": off.median(), "off_most": off.max(),
            "contention": record.facts["contention"], "attempts": schedule[~schedule["status"].isin(("done", "failed"))],
            "notes": [{"note": note} for note in record.facts["notes"]]}


@needs("schedules")
def best(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
         front: pd.DataFrame) -> Numbers:
    """Return which policy is the best of each comparison, with its figures."""
    def ranked(table: pd.DataFrame, column: str = "ratio", objective: str = "") -> pd.DataFrame:
        means = _means(table, column).sort_values(column, kind="stable").rename(columns={column: "value"})
        aimed = means["policy"].str.startswith("hybrid") & bool(objective)
        return means.assign(choice=means["policy"].mask(aimed, f"hybrid --objective {objective}"))

    top = loads[loads["load"] == loads["load"].max()]
    makespan, waits = ranked(results), ranked(completion, objective="mean_jct")
    mean, tail = ranked(top, "mean_jct_s", "mean_jct"), ranked(top, "p99_jct_s", "p99_jct")
    rough, frugal = ranked(_nearest(noise, "sigma", _SIGMA)), front.nsmallest(1, "energy_j")
    mean_s, tail_s = (table.set_index("policy")["value"] for table in (mean, tail))
    return {**first(makespan.assign(above=makespan["value"] - 1), "makespan_"), "load": loads["load"].max(),
            **first(makespan.assign(above=makespan["value"] - 1)[makespan["policy"] != "hybrid"], "plain_"),
            **first(waits, "waits_"), **first(waits.iloc[::-1], "slowest_"), **first(mean, "mean_"), **first(tail, "tail_"),
            "mean_over_first": mean_s.iloc[0] / mean_s.get("first-come", np.nan),
            "tail_over_first": tail_s.iloc[0] / tail_s.get("first-come", np.nan),
            "tail_mean": mean_s[tail_s.index[0]] / mean_s.iloc[0], **first(rough, "rough_"),
            **first(rough.iloc[::-1], "roughest_"), **first(ranked(frugal, "energy_j", "energy"), "frugal_"),
            "frugal_mj": frugal["energy_j"].iloc[0] / 1e6, "frugal_s": frugal["makespan_s"].iloc[0]}


def key_numbers(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
                adversarial: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers: name to value, unit and tolerance."""
    mixes = _of_hybrid(results).to_dict("records")
    top = loads[loads["load"] == loads["load"].max()].groupby("policy")["mean_jct_s"].mean()
    sigma = noise[(noise["policy"] == "hybrid") & (noise["sigma"] == noise["sigma"].max())]["over_perfect"].mean()
    swapped, blind = adversarial.groupby("policy")["over_blind"].mean().reindex(["hybrid", "hybrid, blind"])
    numbers = {f"{row['mix']}: hybrid / bound": (row["ratio"], "") for row in mixes}
    numbers |= {f"{row['mix']}: could be saved": (100 * row["room"], "%") for row in mixes}
    numbers |= {
        "mean completion / least": (completion[completion["policy"] == "hybrid"]["ratio"].mean(), ""),
        "hybrid / first-come at the highest load": (top["hybrid"] / top["first-come"], ""),
        "hybrid / perfect at the largest noise": (sigma, ""),
        "hybrid, swapped / blind": (swapped, ""),
        "hybrid without predictions / blind": (blind, "")}
    return {name: (*number, _SAME) for name, number in numbers.items()}
