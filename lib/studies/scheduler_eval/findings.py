"""Numbers of the scheduler's evaluation, for the sentences of 07_scheduler_eval, and its key numbers."""

import numpy as np
import pandas as pd
from scipy import stats

from lib.missing import needs
from lib.report.sentences import KeyNumbers, Numbers
from lib.schedule.runtime.run_record import RunRecord

_LITTLE = 0.05  # of the best single-device makespan: less than that is little to win
SAME = 1e-6  # relative tolerance of key numbers: schedules are the same on any machine
_SIGMA, _DRIFT = 0.3, 0.2  # of the wrong predictions that are told of


def _means(table: pd.DataFrame, column: str = "ratio") -> pd.DataFrame:
    """Return the mean of a column by policy."""
    return table.groupby("policy", sort=False)[column].mean().reset_index()


def _nearest(table: pd.DataFrame, column: str, value: float = np.inf) -> pd.DataFrame:
    """Return the rows whose column is nearest to a value (default: the largest)."""
    away = (table[column] - min(value, table[column].max())).abs()
    return table[away == away.min()]


def _of_hybrid(results: pd.DataFrame) -> pd.DataFrame:
    return results.query("policy == 'hybrid'").groupby("mix", sort=False).mean(numeric_only=True).reset_index()


@needs("schedules")
def near_bound(results: pd.DataFrame) -> Numbers:
    """Return how far from the bound hybrid is, what could be won, and where that is little, by mix."""
    mixes = _of_hybrid(results).eval("little = room < @_LITTLE\nabove = ratio - 1")
    return {"mixes": mixes, "poor": "; ".join(mixes.loc[mixes["little"], "mix"])}


def waiting(completion: pd.DataFrame, loads: pd.DataFrame) -> Numbers:
    """Return completion times: over the least possible by order, and at the highest load over those of first-come."""
    top = _nearest(loads, "load").groupby("policy", sort=False)[["mean_jct_s", "p99_jct_s"]].mean()
    over = (top / top.reindex(["first-come"]).to_numpy()).drop("first-come", errors="ignore")
    return {"orders": _means(completion), "loads": loads, "over_first": over.reset_index()}


def wrong(noise: pd.DataFrame, stale: pd.DataFrame, uncertain: pd.DataFrame, adversarial: pd.DataFrame) -> Numbers:
    """Return makespans over the bound by the way in which predictions are wrong, and over the best policy without any."""
    single, shared = _nearest(noise, "sigma", _SIGMA), _nearest(stale, "drift", _DRIFT)
    swapped = _means(adversarial, "over_blind")
    return {"sigma": single["sigma"].max(), "drift": shared["drift"].max(), "perfect": _means(noise.query("sigma == 0")),
            "single": _means(single), "shared": _means(shared), "uncertain": _means(uncertain),
            "swapped": swapped[~swapped["policy"].str.contains("blind|perfect")], "noise": noise,
            "blind": swapped.query("policy == 'hybrid, blind'"),
            "better": adversarial.loc[adversarial["policy"] == "hybrid", "over_better"].mean(),
            "errors": _means(_nearest(noise, "sigma"))}


def together(gangs: pd.DataFrame) -> Numbers:
    """Return makespan over the bound and completion over first-come's of jobs on several devices, by policy."""
    means = gangs.groupby("policy", sort=False)[["ratio", "over_first"]].mean().reset_index()
    return {"chosen": means.head(1), "fixed": means.tail(-1), "all": means}


def trade(front: pd.DataFrame) -> Numbers:
    """Return the schedules on the front, the shortest first, over the shortest, and on what the joules rest."""
    ours = front.query("policy == 'hybrid' and front").sort_values("makespan_s").eval("""
        mj = energy_j / 1e6
        saved = 1 - energy_j / energy_j.head(1).sum()
        longer = makespan_s / makespan_s.head(1).sum() - 1""")
    sources = sorted(set(ours["energy_source"]))
    return {"some": len(ours) > 1, "ours": ours, "assumed": sources == ["assumed"], "sources": "; ".join(sources)}


def real(record: RunRecord) -> Numbers:
    """Return how the real run went against the simulated one."""
    jobs, schedule = record.jobs(), record.schedule
    return {"done": jobs.eval("off = abs(actual_s / predicted_s - 1)"), "record": record,
            "late": record.makespan_s / record.simulated_s - 1, "attempts": schedule.query("status not in ('done', 'failed')"),
            "notes": [{"note": note} for note in record.facts["notes"]]}


def _no_worse(table: pd.DataFrame, column: str, best: str) -> list[str]:
    """Return the policies that are not shown to be worse than ``best``: the 95 % interval of paired differences (log) holds 0.

    Pairs are of the same mix and seed. Without two of them, the best alone.
    """
    keys = [name for name in ("mix", "load", "sigma", "seed") if name in table]
    if "seed" not in keys or len(table[keys].drop_duplicates()) < 2:
        return [best]
    logs = np.log(table.pivot_table(index=keys, columns="policy", values=column))
    over = logs.sub(logs[best], axis=0)
    half = stats.t.ppf(0.975, len(over) - 1) * over.std(ddof=1) / len(over) ** 0.5
    return over.columns[(over.mean() <= half) | (over.columns == best)].tolist()


@needs("schedules")
def best(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
         front: pd.DataFrame) -> Numbers:
    """Return the policies of each comparison, the best first: ``policy, value, choice``, ``over_first`` (over first-come)."""
    def ranked(table: pd.DataFrame, column: str = "ratio", objective: str = "") -> pd.DataFrame:
        means = _means(table, column).sort_values(column, kind="stable").rename(columns={column: "value"})
        aimed = means["policy"].str.startswith("hybrid") & bool(objective)
        by_name = means.set_index("policy")["value"]
        alike = means["policy"].isin(_no_worse(table, column, means["policy"].iloc[0]))
        names = means["policy"].mask(aimed, f"hybrid --objective {objective}")
        best = " or ".join(names[alike].unique()) + ": no difference is shown" * (len(set(names[alike])) > 1)
        return means.assign(choice=names.where(means.index != means.index[0], best), above=means["value"] - 1,
                            over_first=means["value"] / by_name.get("first-come", np.nan))

    top, makespan = _nearest(loads, "load"), ranked(results)
    mean, tail = ranked(top, "mean_jct_s", "mean_jct"), ranked(top, "p99_jct_s", "p99_jct")
    mean_s = mean.set_index("policy")["value"]
    return {"makespan": makespan, "plain": makespan.query("policy != 'hybrid'"), "loads": loads,
            "waits": ranked(completion, objective="mean_jct"), "mean": mean, "tail": tail,
            "tail_mean": mean_s[tail["policy"].iloc[0]] / mean_s.iloc[0], "rough": ranked(_nearest(noise, "sigma", _SIGMA)),
            "frugal": ranked(front.nsmallest(1, "energy_j"), "energy_j", "energy"),
            "least": front.nsmallest(1, "energy_j").assign(mj=front["energy_j"] / 1e6)}


def key_numbers(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
                adversarial: pd.DataFrame, gangs: pd.DataFrame) -> KeyNumbers:
    """Return the key numbers: name to value, unit and tolerance."""
    mixes = _of_hybrid(results)
    jct_s, ratio, over_perfect, over_blind = (table.groupby("policy")[column].mean() for table, column in (
        (_nearest(loads, "load"), "mean_jct_s"), (completion, "ratio"), (_nearest(noise, "sigma"), "over_perfect"),
        (adversarial, "over_blind")))
    return {**{f"{row.mix}: hybrid / bound": (row.ratio, "") for row in mixes.itertuples()},
            **{f"{row.mix}: could be saved": (100 * row.room, "%") for row in mixes.itertuples()},
            "mean completion / least": (ratio["hybrid"], ""),
            "hybrid / first-come at the highest load": (jct_s["hybrid"] / jct_s["first-come"], ""),
            "hybrid / perfect at the largest noise": (over_perfect["hybrid"], ""),
            "hybrid, swapped / blind": (over_blind["hybrid"], ""),
            **{f"{policy}: makespan / bound": (ratio, "") for policy, ratio in _means(gangs).itertuples(index=False)},
            "hybrid without predictions / blind": (over_blind["hybrid, blind"], "")}
