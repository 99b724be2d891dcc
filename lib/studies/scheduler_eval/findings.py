"""The findings of the scheduler's evaluation as sentences, and its key numbers."""

from collections.abc import Sequence

import pandas as pd

from lib.config.definitions import Scenario
from lib.missing import MissingError, needs
from lib.schedule.runtime.run_record import RunRecord

_LITTLE = 0.05  # of the best single-device makespan: less than that is little to win
_SAME = 1e-6  # relative tolerance: schedules are the same on any machine


@needs("schedules")
def bound_words(results: pd.DataFrame) -> str:
    """Say how far from the bound hybrid is, what could be won, and where that is little."""
    ours = results[results["policy"] == "hybrid"].groupby("mix", sort=False).mean(numeric_only=True)
    if ours.empty:
        raise MissingError("schedules of hybrid")
    parts = []
    for mix, row in ours.iterrows():
        text = f"**{mix}**: {row['room']:.1%} could be saved over the best policy that gives each job to one type of device"
        if row["room"] < _LITTLE:
            text += " - little: the fast device would do nearly all of the work anyway"
        saves = "" if pd.isna(row["headroom"]) else f"saves {row['headroom']:.0%} of that and "
        parts.append(f"{text}; `hybrid` {saves}ends {row['ratio'] - 1:.2%} above the bound")
    return "- " + "\n- ".join(parts)


@needs("schedules")
def completion_words(results: pd.DataFrame) -> str:
    """Say how near each order comes to the least mean completion time."""
    mean = results.groupby("policy", sort=False)["ratio"].mean()
    return ("Mean completion time over the least possible (all jobs there at once): "
            + ", ".join(f"{name} {value:.3f}" for name, value in mean.items()) + ".")


@needs("schedules")
def load_words(results: pd.DataFrame) -> str:
    """Say what the order of jobs is worth at the highest load."""
    load = results["load"].max()
    mean = results[results["load"] == load].groupby("policy", sort=False)[["mean_jct_s", "p99_jct_s"]].mean()
    if "first-come" not in mean.index:
        raise MissingError("schedules of first-come")
    first = mean.loc["first-come"]
    parts = [f"{name}: mean {row['mean_jct_s'] / first['mean_jct_s']:.2f}, p99 {row['p99_jct_s'] / first['p99_jct_s']:.2f}"
             for name, row in mean.iterrows() if name != "first-come"]
    return f"At load {load:g}, completion times over those of first-come: " + "; ".join(parts) + "."


@needs("schedules")
def noise_words(noise: pd.DataFrame, stale: pd.DataFrame, uncertain: pd.DataFrame) -> str:
    """Say what wrong predictions cost, by the way in which they are wrong."""
    sigma = noise.loc[(noise["sigma"] - 0.3).abs().idxmin(), "sigma"]
    drift = stale.loc[(stale["drift"] - 0.2).abs().idxmin(), "drift"]

    def means(table: pd.DataFrame) -> str:
        return ", ".join(f"{name} {value:.2f}" for name, value in table.groupby("policy", sort=False)["ratio"].mean().items())

    return (f"Makespan over the bound. Perfect predictions: {means(noise[noise['sigma'] == 0])}. Every job off by itself "
            f"(sigma {sigma:g}): {means(noise[noise['sigma'] == sigma])}. Every job class off by its own factor on each "
            f"device (sigma {drift:g}), unknown to all policies: {means(stale[stale['drift'] == drift])}. "
            f"As wrong as the cost model's own intervals allow: {means(uncertain)}.")


@needs("schedules")
def adversarial_words(results: pd.DataFrame) -> str:
    """Say how predictions that were swapped between two types for half of the jobs are borne."""
    mean = results.groupby("policy", sort=False)["over_blind"].mean()
    names = [name for name in mean.index if "blind" not in name and "perfect" not in name]
    if "hybrid, blind" not in mean.index:
        raise MissingError("schedules of hybrid without predictions")
    return ("Predictions swapped between two types for half of the jobs, makespan over that of the best policy that uses no "
            "predictions: " + ", ".join(f"{name} {mean[name]:.2f}" for name in names)
            + f"; `hybrid` without any predictions: {mean['hybrid, blind']:.2f}.")


@needs("schedules")
def pareto_words(results: pd.DataFrame) -> str:
    """Say what energy costs in time."""
    ours = results[(results["policy"] == "hybrid") & results["front"]].sort_values("makespan_s")
    if ours.empty:
        raise MissingError("schedules of hybrid on the front")
    fast, spare = ours.iloc[0], ours.iloc[-1]
    if len(ours) < 2:
        return "Nothing to trade: the shortest schedule is also the one that takes the least energy."
    saved, longer = 1 - spare["energy_j"] / fast["energy_j"], spare["makespan_s"] / fast["makespan_s"] - 1
    return (f"The shortest schedule takes {fast['energy_j'] / 1e6:.1f} MJ; {saved:.0%} less energy costs {longer:.0%} more "
            f"time. {_known(ours['energy_source'])}")


def _known(sources: pd.Series) -> str:
    """Say on what the joules of schedules rest."""
    if set(sources) == {"assumed"}:
        return "The joules are assumed: all of it rests on the watts in params/scenarios.yaml."
    return f"The joules of the schedules: {'; '.join(sorted(set(sources)))}."


@needs("measured pairs")
def contention_words(table: pd.DataFrame, cost: pd.DataFrame, cores: pd.DataFrame) -> str:
    """Say how much jobs slow each other down, and what ignoring it costs."""
    pairs = table[table["beside"] != "nothing"]
    if pairs.empty:
        raise MissingError("measured pairs")
    worst = pairs.loc[pairs["slowdown"].idxmax()]
    ours = cost[cost["policy"] == "hybrid"].set_index("known")
    off, span = (ours.groupby("known")[name].mean() for name in ("error", "makespan_s"))
    mean = cores.pivot_table(index="host_cores", columns="cores", values="makespan_s")
    lost = mean["ignored"] / mean["counted"] - 1
    return (f"Beside another job a step takes {pairs['slowdown'].median():.2f} times as long at the median of all pairs, at "
            f"most {worst['slowdown']:.2f} ({worst['workload_id']} beside {worst['beside']}). Without knowing it, `hybrid` "
            f"simulates a makespan that is off by {off['nothing']:+.0%}; knowing the mean, by {off['the mean']:+.1%}; knowing "
            f"every pair, by {off['every pair']:+.1%}, and what it then gets is {1 - span['every pair'] / span['nothing']:.1%} "
            f"shorter. Taking cores that jobs on a GPU need for free costs up to {lost.max():+.0%} (at {lost.idxmax():g} cores "
            "a job).")


def scenario_words(scenarios: Sequence[Scenario]) -> str:
    """Say what the scenarios are."""
    return "The scenarios: " + "; ".join(f"**{one.id}**, {one.note}" for one in scenarios) + "."


@needs("finished jobs")
def real_words(record: RunRecord) -> str:
    """Say how the real run went against what was simulated."""
    jobs = record.jobs()
    if jobs.empty:
        raise MissingError("finished jobs")
    off = (jobs["actual_s"] / jobs["predicted_s"] - 1).abs()
    wrong = record.schedule[~record.schedule["status"].isin(("done", "failed"))]
    beside = ("Contention was measured before and is simulated." if record.facts["contention"] else
              "Contention was not measured here: probes ran side by side instead.")
    late = record.makespan_s / record.simulated_s - 1
    text = (f"{len(jobs)} of {len(record.ends)} jobs done in {record.makespan_s:.1f} s; simulated were "
            f"{record.simulated_s:.1f} s, so it took {late:+.1%}. Single jobs are off by {off.median():.1%} at the "
            f"median, {off.max():.0%} at most. {beside}")
    if len(wrong):
        several = (f"{row.job_id} on {row.device} ({row.status})" for row in wrong.itertuples())
        text += f" Attempts that did not count: {'; '.join(several)}."
    return text + "".join(f" {note}." for note in record.facts["notes"])


def published_words(results: pd.DataFrame) -> str:
    """Say how the policies do on published jobs, or that there are none."""
    if not len(results):
        return "They were not imported here."
    return bound_words(results)


def which(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
          front: pd.DataFrame) -> pd.DataFrame:
    """Return which policy to use when, each the best of its comparison, with the evidence."""
    above = results.groupby("policy")["ratio"].mean().sort_values()
    plain = above.drop("hybrid")
    waits = completion.groupby("policy")["ratio"].mean().sort_values()
    top = loads[loads["load"] == loads["load"].max()].groupby("policy")[["mean_jct_s", "p99_jct_s"]].mean()
    mean, tail = top["mean_jct_s"].sort_values(), top["p99_jct_s"].sort_values()
    rough = noise[(noise["sigma"] - 0.3).abs() < 1e-9].groupby("policy")["ratio"].mean().sort_values()
    spare = front.loc[front["energy_j"].idxmin()]
    rows = [
        ("all jobs are there, an early end is wanted", above.index[0], f"{above.iloc[0] - 1:.1%} above the bound; next is "
         f"{plain.index[0]}, {plain.iloc[0] - 1:.1%}"),
        ("the same, without a search", plain.index[0], f"{plain.iloc[0] - 1:.1%} above the bound, no compiled code"),
        ("all jobs are there, short waits are wanted", _aimed(waits.index[0], "mean_jct"),
         f"{waits.iloc[0]:.3f} of the least mean completion time; {waits.index[-1]}: {waits.iloc[-1]:.2f}"),
        ("jobs keep arriving, short waits", _aimed(mean.index[0], "mean_jct"),
         f"{mean.iloc[0] / mean['first-come']:.2f} of first-come's mean at load {loads['load'].max():g}"),
        ("jobs keep arriving, no job may wait too long", _aimed(tail.index[0], "p99_jct"),
         f"{tail.iloc[0] / tail['first-come']:.2f} of first-come's p99; its mean is {mean[tail.index[0]] / mean.iloc[0]:.2f} "
         "times the best"),
        ("times are known roughly (sigma 0.3)", rough.index[0], f"{rough.iloc[0]:.2f} of the bound; {rough.index[-1]}: "
         f"{rough.iloc[-1]:.2f}"),
        ("energy counts", _aimed(spare["policy"], "energy"),
         f"least energy of all: {spare['energy_j'] / 1e6:.1f} MJ in {spare['makespan_s']:,.0f} s")]
    return pd.DataFrame(rows, columns=["when", "policy", "evidence"])


def _aimed(name: str, objective: str) -> str:
    return f"hybrid --objective {objective}" if name.startswith("hybrid") else name


def learned(results: pd.DataFrame, noise: pd.DataFrame, record: RunRecord) -> str:
    """Say what to keep of all this."""
    room = results.groupby("mix", sort=False)["room"].mean()
    little = [mix for mix, share in room.items() if share < _LITTLE]
    text = [bound_words(results)]
    text.append(f"- There is little to win in {', '.join(little)}." if little else
                f"- What a scheduler can win depends on the fleet: from {room.min():.0%} ({room.idxmin()}) to {room.max():.0%} "
                f"({room.idxmax()}) of the makespan.")
    worst = noise[noise["sigma"] == noise["sigma"].max()].groupby("policy")["ratio"].mean()
    text.append(f"- With errors of sigma {noise['sigma'].max():g}, `hybrid` takes {worst['hybrid']:.2f} times the bound, "
                f"longest-first {worst['longest-first']:.2f}: planning once and binding early pays for every error.")
    text.append(f"- {real_words(record)}")
    return "\n".join(text)


def key_numbers(results: pd.DataFrame, completion: pd.DataFrame, loads: pd.DataFrame, noise: pd.DataFrame,
                adversarial: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers: name to value, unit and tolerance."""
    ours = results[results["policy"] == "hybrid"].groupby("mix", sort=False).mean(numeric_only=True)
    top = loads[loads["load"] == loads["load"].max()].groupby("policy")["mean_jct_s"].mean()
    sigma = noise[(noise["policy"] == "hybrid") & (noise["sigma"] == noise["sigma"].max())]["over_perfect"].mean()
    swapped, blind = adversarial.groupby("policy")["over_blind"].mean().reindex(["hybrid", "hybrid, blind"])
    numbers = {f"{mix}: hybrid / bound": (row["ratio"], "") for mix, row in ours.iterrows()}
    numbers |= {f"{mix}: could be saved": (100 * row["room"], "%") for mix, row in ours.iterrows()}
    numbers |= {
        "mean completion / least": (completion[completion["policy"] == "hybrid"]["ratio"].mean(), ""),
        "hybrid / first-come at the highest load": (top["hybrid"] / top["first-come"], ""),
        "hybrid / perfect at the largest noise": (sigma, ""),
        "hybrid, swapped / blind": (swapped, ""),
        "hybrid without predictions / blind": (blind, "")}
    return {name: (*number, _SAME) for name, number in numbers.items()}
