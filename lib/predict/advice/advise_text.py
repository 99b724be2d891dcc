"""Advice in words and tables, for the command line and the notebook: on one screen, or all of it."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic_core import to_jsonable_python

from lib.errors import choices
from lib.measure.reference_kernel import KernelNow, ProcessorSpeed
from lib.predict import parallel, registry, steps, transfer_cpu
from lib.predict.advice.advise import Advice, tied
from lib.predict.advice.suggestions import RETAINING, Change, retained_memory
from lib.predict.power import limits
from lib.predict.transfer import ANY_GPU
from lib.predict.trust import quote
from lib.work.runtimes import TORCH

WIDTH = 100
_LIMITS = {"launch": "launching kernels", "loader": "waiting for the loader", "copy": "copying to the device"}
CONFIDENCE_REACH = {"A": 1.25, "B": 1.5, "C": 2.5, "D": math.inf}  # how many times the prediction the 90 % range reaches
_TRUSTED = ("A", "B")
_ZERO_SHOT = "zero-shot from "
_CHANGES, _NAMED = 3, 4  # changes that are shown, and devices named in a sentence
_BUSY = 4  # times its usual time that the reference kernel takes at most while no others hold the cores
_APART = 1.15  # times that a heap is faster from which both heaps are told
_WORTH = 1.02  # a smaller gain is no reason to change anything
CONFIDENCE = ("Confidence: the 90 % range reaches at most 1.25 (A), 1.5 (B) or 2.5 (C) times the prediction, or more (D). C on "
              "a narrow range: learned from other devices, or out of the training range.")
NUMBER = "{:,.4g}".format
SHOWN = {"device": "device", "source": "source", "predicted_ms": "ms", "low_ms": "low", "high_ms": "high",
         "images_per_sec": "images/s", "predicted_gbps": "GB/s", "memory_mb": "MB", "rss_mb": "resident MB", "bound": "bound",
         "below_roof": "x below roof", "fits": "fits",
         "out_of_range": "outside", "measured_ms": "measured ms", "price_per_million": "price / 10^6 images",
         "energy_j": "J/image", "energy_low_j": "J low", "energy_high_j": "J high", "loader_wait_ms": "loader ms",
         "h2d_ms": "copy ms", "forward_ms": "forward ms", "backward_ms": "backward ms", "optimizer_ms": "optimizer ms"}
Row = dict[str, Any]


def heading(advice: Advice) -> str:
    """Say what was predicted."""
    config = advice.captured.config
    batch_size = advice.captured.batch_size * config.gpus
    work, shared = "a forward pass", f"{config.gpus} GPUs that exchange nothing"
    if config.mode == "train":
        work = "a training step (loader, copy, forward, backward, Adam)"
        shared = f"{config.gpus} GPUs ({parallel.DDP.format(advice.table['gradients_mb'].iloc[0])})"
    how = replace(config, network="", gpus=1).label
    conditions = [how if config.is_for_cpu else how.removeprefix("torch ")]
    if config.gpus > 1:
        conditions.append(shared)
    given = [f"{entry.name} {entry.sample}".strip() for entry in config.loaded(1).batch if entry.name or not entry.is_float]
    return (f"{config.network}, {work} of {batch_size} sample{'s' * (batch_size > 1)}"
            f"{f' of {choices(given)}' if given else ''}, {', '.join(conditions)}")


# ---------------------------------------------------------------------------------------------- on one screen

def grade(row: Row) -> str:
    """Return how far to trust a row of advice, A to D: by the reach of its 90 % interval, which comes from held-out errors.

    That of another CPU that is not scaled to this one is D.
    """
    reach = max(row["high_ms"] / row["predicted_ms"], row["predicted_ms"] / row["low_ms"])
    if registry.NOT_SCALED in row["source"]:
        return "D"
    return next(letter for letter, most in CONFIDENCE_REACH.items() if reach <= most)


def screen(advice: Advice, suggested: Sequence[Change], note: str = "") -> str:
    """Return the answer for a terminal, at most WIDTH columns; ``note`` says what slows this CPU now (``cpu_load_note``)."""
    rows = _graded(advice)
    lines = [heading(advice), *verdicts(advice), *([note] if note else []), *_heaps(advice, suggested), "",
             *_table(_cells(rows)), ""]
    unknown = list(dict.fromkeys(row["not_modelled"] for row in rows if row["not_modelled"]))
    lines += [f"No model covers these; a similar operator's time is used: {choices(unknown)}"] if unknown else []
    suggested = suggested if advice.recommended else ()  # what fits nowhere has no changes that would help
    best = _worthwhile(suggested)
    worth = [f"  {change.predicted_gain:.2f}  {change.what.partition(' (')[0]}  {change.options}".rstrip() for change in best]
    device = advice.suggestion_target.predictor.device
    lines += [f"What to change on {device}, and how many times as many images a second:", *worth] if worth else \
        [f"No change is predicted to make it faster on {device}."] * bool(advice.recommended)
    lines += [f"To save energy: {change.what}: {change.why}." for change in suggested if "power_limit_w" in change.settings]
    lines += [*_limited(advice), *_prepared(advice)]
    lines += ["With these options and --code, advise prints a program that runs it so."] * \
        any(change.options for change in best)
    lines += ["int8: times alone; check how exact the quantised network is."] * any(" int8" in line for line in worth)
    unscaled = " D on a narrow range: the time of another CPU." * any(registry.NOT_SCALED in row["source"] for row in rows)
    lines.append(f"{CONFIDENCE}{unscaled} --explain: where each number comes from.")
    return "\n".join(line if line.startswith("  ") else textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in lines)


def _prepared(advice: Advice) -> list[str]:
    """Say that the CPU's network is exported or compiled first."""
    config = advice.captured.config
    if advice.of("cpu") is None or (config.runtime == TORCH and not config.compiled):
        return []
    return ["Exporting or compiling takes some ten seconds, once. --code prints a program that runs it."]


def _limited(advice: Advice) -> list[str]:
    condition = advice.answers[0].device_condition
    if condition.power_limit_w:
        how = f"limited to {condition.power_limit_w:g} W"
    elif condition.clock_mhz:
        how = f"at {condition.clock_mhz:g} MHz"
    else:
        return []
    return [f"{row['device']} {how}: {limits.text(row)}." for row in advice.table.to_dict("records")]


def _graded(advice: Advice) -> list[Row]:
    return [{**row, "grade": grade(row)} for row in advice.table.to_dict("records")]


def _worthwhile(suggested: Sequence[Change]) -> list[Change]:
    return [change for change in suggested if change.predicted_gain >= _WORTH][:_CHANGES]


def short_table(advice: Advice) -> pd.DataFrame:
    """Return the devices as the screen shows them, the fastest first; columns that say nothing are left out."""
    return _cells(_graded(advice))


def verdicts(advice: Advice) -> list[str]:
    """Return the fastest device that the network fits into, and the fastest that can be trusted where that is another."""
    rows = _graded(advice)
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return [f"It fits into none of these devices: it needs {rows[0]['memory_mb']:,.0f} MB. Ask for a smaller batch."]
    fastest, trusted = fitting[0], next((row for row in fitting if row["grade"] in _TRUSTED), None)
    ties = tied(fitting)
    lines = [f"Fastest: {_time(fastest)}{_doubt(fastest)}." if len(ties) == 1 else _tie(ties)]
    if len(fitting) > 1 and trusted is not fastest:
        lines.append(f"Best that can be trusted: {_time(trusted)}." if trusted else
                     "None of these predictions has confidence A or B: measure before you decide.")
    return lines


def _doubt(row: Row) -> str:
    """Return why an answer is doubtful: the devices it was learned from, and its known errors on this one."""
    if not row["source"].startswith(_ZERO_SHOT):
        return ", out of the range that its model was trained on" * row["out_of_range"]
    learned = row["source"].removeprefix(_ZERO_SHOT).partition(f", {registry.NOT_SCALED}")[0].replace(ANY_GPU, "other GPUs")
    if not row.get("held_out", "").startswith(quote.ON_CARD):
        return f", learned from {learned}"
    return (f", learned from {learned}; {row['held_out_n']:.0f} networks measured on it show a typical error of "
            f"{row['held_out_median_pct']:.0f} %")


def _tie(rows: Sequence[Row]) -> str:
    """Return that devices tie for the fastest, and why."""
    names, grades = [row["device"] for row in rows], sorted(row["grade"] for row in rows)
    more = f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
    span = " to ".join(dict.fromkeys(_figures(rows[place]["predicted_ms"]) for place in (0, -1)))
    bounds = [row["bound"] for row in rows]
    why = _LIMITS.get(bounds[0], "") if 2 * bounds.count(bounds[0]) > len(bounds) else ""
    why = f"{why} takes most of the time" if why else "their times differ by less than the predictions can tell"
    confidence = " to ".join(dict.fromkeys((grades[0], grades[-1])))
    return f"Fastest: {choices(names[:_NAMED])}{more} tie at {span} ms (confidence {confidence}): {why}."


def _time(row: Row) -> str:
    return f"{row['device']}, {_figures(row['predicted_ms'])} ms ({_range(row)}, confidence {row['grade']})"


def _range(row: Row) -> str:
    high = f"to {_figures(row['high_ms'])}" if math.isfinite(row["high_ms"]) else "or more"
    return f"{_figures(row['low_ms'])} {high}"


def _figures(value: float) -> str:
    """Return three figures of a number, more before the decimal point, never as a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _cells(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as text by column; columns that say nothing are left out."""
    cells = pd.DataFrame([{
        "device": row["device"], "ms": _figures(row["predicted_ms"]), "90 % range": _range(row),
        "images/s": _figures(row["images_per_sec"]),
        "scaling": f"{row['scaling_efficiency']:.0%}" * (row["scaling_efficiency"] < 1),
        "memory MB": f"{row['memory_mb']:,.0f}" + " (too much)" * (not row["fits"]), "limited by": row["bound"],
        "confidence": row["grade"], "measured ms": _figures(row["measured_ms"]) if row["measured_ms"] > 0 else ""}
        for row in rows])
    return cells.loc[:, (cells != "").any()]


def _table(cells: pd.DataFrame) -> list[str]:
    columns = [[name, *column] for name, column in cells.items()]
    padded = [[f"{text:{'>' if number else '<'}{max(map(len, column))}}" for text in column]
              for number, column in enumerate(columns)]
    return [f"  {'  '.join(line)}".rstrip() for line in zip(*padded, strict=True)]


# ---------------------------------------------------------------------------------------------- all of it

def table(advice: Advice) -> pd.DataFrame:
    """Return the devices as people read them; columns that say nothing are left out."""
    return advice.table[list(SHOWN)].rename(columns=SHOWN).dropna(axis=1, how="all")


def text(advice: Advice) -> str:
    """Return the whole answer for a terminal."""
    body = table(advice).to_string(index=False, float_format=NUMBER)
    lines = [heading(advice), *verdicts(advice), "", body, "", *_limited(advice)]
    if advice.table["out_of_range"].any():
        lines.append("outside: over 5 % of the time is of operators out of the training range, the batch size was not trained, "
                     "the model is another machine's, or no network was measured on so many GPUs; the interval is "
                     "widened, not proven")
    lines += [*_notes(advice), *_step_notes(advice)]
    if advice.table["energy_j"].notna().any():
        lines.append("J/image: predicted power of the board times predicted time; the host is not in it")
    return "\n".join(lines)


def _notes(advice: Advice) -> list[str]:
    """Return notes on the times, such as operators without a model and hosts that nobody measured."""
    shown, dtype = advice.table, advice.captured.config.dtype
    works = {answer.predictor.device_type: answer.work for answer in advice.answers}

    def listed(name):
        return choices(dict.fromkeys(part for kind in sorted(works) for part in getattr(works[kind], name)))

    unknown, uncounted, branches = map(listed, ("not_modelled", "uncounted", "branches"))
    resident = [f"{row.device}: resident memory of a fresh process, beyond Python and torch: {row.rss_mb:,.0f} MB "
                f"({row.rss_low_mb:,.0f} to {row.rss_high_mb:,.0f})" for row in shown.itertuples() if row.rss_mb > 0]
    unbounded = np.isinf(shown["high_ms"]).any()
    lines = {
        f"not modelled: {unknown}; the time of a similar operator, or of the same one in {dtype}, is used": unknown,
        f"FLOPs not known: {uncounted}; one is counted for each element, which is the least": uncounted,
        "inf: of some operators only the least time is known, so the interval has no upper end": unbounded,
        f"its control flow depends on values ({branches}): the branch of random inputs was taken": branches,
        **dict.fromkeys(resident, True),
        "fp32 on GPUs is torch's default: convolutions compute in TF32 where the card has it, matrix products do not":
            "cuda" in works and dtype == "fp32",
        **{f"{row.device}, errors on what was held out: {row.held_out}": True for row in shown.itertuples()}}
    return [line for line, holds in lines.items() if holds]


def _step_notes(advice: Advice) -> list[str]:
    """Return the sources of the parts of a training step."""
    sources = {}
    for answer in advice.answers if advice.captured.config.mode == "train" else ():
        for name, costs in steps.costs_of(answer.predictor).items():
            sources.setdefault(f"{name.replace('_', ' ')}: {costs.source}", []).append(answer.predictor.device)
    return [f"{source} ({choices(devices)})" for source, devices in sources.items()]


def usual_speed(advice: Advice) -> ProcessorSpeed | None:
    """Return this CPU's usual speed; None unless it was measured when this very CPU was calibrated."""
    cpu = advice.of("cpu")
    speed = None if cpu is None or cpu.predictor.origin else cpu.predictor.model.facts.get("processor_speed")
    return speed and ProcessorSpeed(**speed)


def cpu_now(advice: Advice, kernel: KernelNow) -> Row:
    """Return the CPU's time at its usual speed and now, in ms (NaN if busy), and its speed as a share of the usual one.

    Empty without a ``usual_speed``.
    """
    usual = usual_speed(advice)
    if usual is None:
        return {}
    is_busy = kernel.busy or kernel.ms > _BUSY * usual.usual_ms
    usual_ms, speed = advice.of("cpu").estimate.predicted_ms, math.nan if is_busy else usual.usual_ms / kernel.ms
    return {"usual_ms": usual_ms, "now_ms": usual_ms * speed ** -usual.elasticity, "speed": speed}


def _now(advice: Advice, kernel: KernelNow | None) -> str:
    row = cpu_now(advice, kernel) if kernel else {}
    if not row:
        return ""
    now = f"{_figures(row['now_ms'])} ms now (at {row['speed']:.2f} of its usual speed)"
    if math.isnan(row["speed"]):
        why = kernel.busy or f"the reference kernel takes over {_BUSY:g} times its usual time"
        now = f"the machine is too busy to tell its speed now ({why})"
    return f"On this CPU: {_figures(row['usual_ms'])} ms usually; {now}."


def _heaps(advice: Advice, suggested: Sequence[Change]) -> list[str]:
    """Return the time with a heap that retains freed memory, where page faults take much of the CPU's time."""
    return [f"Page faults take {1 - 1 / change.predicted_gain:.0%} of the CPU's time: with {RETAINING} set it takes "
            f"{_figures(advice.suggestion_target.estimate.predicted_ms / change.predicted_gain)} ms." for change in suggested
            if change.settings.get("memory") == "kept" and change.predicted_gain >= _APART]


def cpu_load_note(advice: Advice, free: int, kernel: KernelNow | None = None) -> str:
    """Say what the CPU's times assume, and what to expect while other processes hold cores; empty without a CPU.

    ``free``: cores that they left free a moment ago. ``kernel``: the reference kernel now, which tells the time to expect now.
    """
    cpu = advice.of("cpu")
    if cpu is None:
        return ""
    threads = torch.get_num_threads()
    assumed = f"The CPU's time is that of an idle machine with {threads} thread{'s' * (threads > 1)}"
    if cpu.predictor.is_unscaled:
        is_doubtful = bool(cpu.predictor.model.facts.get(transfer_cpu.DOUBTFUL))
        why = "the ceilings measured here are unusable, others held cores" if is_doubtful else "no ceilings were measured here"
        assumed += f" like {cpu.predictor.origin.removeprefix(transfer_cpu.CPU)}, not scaled to this one: {why}"
    busy = f"; others hold cores now: set OMP_NUM_THREADS={free} meanwhile" * (free < threads)
    return " ".join(filter(None, (f"{assumed}{busy}.", _now(advice, kernel))))


def records(advice: Advice, verified: tuple[float, Sequence[Change]] | None = None, note: str = "",
            kernel: KernelNow | None = None) -> list[Row]:
    """Return the table as plain values for JSON, one row per device; unknown values are null.

    This machine's CPU gets more: ``verified_ms`` and ``changes`` from ``verified`` (the ms and the changes measured here),
    ``note`` (``cpu_load_note``), its time now by the reference ``kernel`` (``cpu_now``), and ``retained_ms`` with a heap that
    retains freed memory.
    """
    rows = advice.table.to_dict("records")
    names, more = ("what", "predicted_gain", "measured_gain", "why"), {"note": note} if note else {}
    cpu = advice.of("cpu")
    more |= cpu_now(advice, kernel) if kernel else {}
    if cpu and (change := retained_memory(cpu)):
        more["retained_ms"] = cpu.estimate.predicted_ms / change.predicted_gain
    if verified:
        more |= {"verified_ms": verified[0],
                 "changes": [{name: getattr(change, name) for name in names} for change in verified[1]]}
    return plain([row | more if row["device"] == "cpu" else row for row in rows])


def plain(value: Any) -> Any:
    """Return a value with null in place of every number that JSON does not have."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback={pd.NA: None}.__getitem__)


def changes(suggested: Sequence[Change]) -> str:
    """Return what to change as lines for a terminal; gains are factors of images a second."""
    lines = ["", "what to change (factor of images a second):"]
    for change in suggested:
        gain = "  ? " if np.isnan(change.predicted_gain) else f"{change.predicted_gain:.2f}"
        measured = "" if np.isnan(change.measured_gain) else f", measured {change.measured_gain:.2f}"
        lines.append(f"  {gain}{measured}  {change.what}: {change.why}")
    return "\n".join(lines)


def changes_table(suggested: Sequence[Change]) -> pd.DataFrame:
    """Return what to change as a table."""
    return pd.DataFrame([{"change": change.what, "predicted gain": change.predicted_gain, "measured gain": change.measured_gain,
                          "why": change.why} for change in suggested])


def verdict(advice: Advice, measured_ms: float) -> str:
    """Say whether the interval of this machine's CPU covers what was measured: of a training step forward and backward.

    NaN: the machine was too busy to compare.
    """
    if math.isnan(measured_ms):
        return ("\nnot compared with a measurement: other processes held this machine's cores meanwhile; run --verify again "
                "when it is idle")
    what = "forward and backward measured" if advice.captured.config.mode == "train" else "measured"
    measured, cpu = f"\n{what} on this machine's CPU: {measured_ms:,.4g} ms", advice.of("cpu")
    if cpu is None:
        return measured
    in_a_loop = advice.captured.config.mode == "train" and not cpu.uses_gain  # predicted so, and measured by itself
    passes = cpu.predictor.estimate(cpu.work) if in_a_loop else cpu.passes
    covered = "inside" if passes.low_ms <= measured_ms <= passes.high_ms else "OUTSIDE"
    return (f"{measured}, {covered} the interval {passes.low_ms:,.4g} to "
            f"{passes.high_ms:,.4g}; the prediction was off by {passes.predicted_ms / measured_ms - 1:+.1%}")
