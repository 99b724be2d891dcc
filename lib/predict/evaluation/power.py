"""Learning what GPUs draw from published watts of networks, scored on cards left out.

EnergAIzer: forward passes at locked clocks; Zeus: training loops at the highest power limit.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict import held_out, registry, scores
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.networks import composition
from lib.predict.networks.work import Work
from lib.predict.power import energy
from lib.predict.power.energy import PATH, TERMS, Load, PowerModel
from lib.predict.published import energaizer, labels
from lib.progress import track
from lib.work import dtypes, networks
from lib.work.graph import capture
from lib.work.run_config import RunConfig

ZEUS = "summary_power_*.csv"
_BERT = json.dumps({"model_type": "bert", "architectures": ["BertModel"]})  # of the usual size
_TF32 = ("resnet101", "hf:mobilevit-small")  # in fp32: cuDNN convolves in TF32, without a model
_CASE = ["device", "model", "input", "dtype", "batch_size"]
# what the numbers are expected to be, and the spread of their logs: energies at rest, of a FLOP and
# a bit as published (see ``operators.chip``, ``energy.ENERGY_PER_BIT``), an eighth of a FLOP in 16
# bits, 0.7 of 1 V at low clocks; all of the time of compute-bound kernels follows the clock, and
# half of that of memory-bound ones
_USUAL = np.array([20.0, 0.3, 1.25, 10.0, 3.9, 0.7])
_SPREAD = np.array([0.7, 0.7, 0.7, 0.7, 1.0, 0.1])
_USUAL_CLOCKED, _SPREAD_CLOCKED = np.array([1.0, 0.5]), np.array([0.1, 0.3])
_APART = 0.2  # log of a ratio of clocks, from which it tells how times and joules change
_NOISE, _VOTES = 0.1, 10.0  # of the log of a measurement; the weight of a card, in rows


def read(folder: Path) -> pd.DataFrame:
    """Return the published rows below a folder, each with its ``load`` as predicted.

    Columns: ``source, licence, mode, device, model, input, dtype, batch_size``, the ``clock_mhz``
    and its ``share`` of the boost clock as stated, ``mean_share`` as measured, ``measured_ms,
    power_w``, and ``step_ms`` as predicted without a clock. Raises InputError where one of the
    sources is missing.
    """
    clocked = [path for name in energaizer.FILES for path in sorted(folder.rglob(name))
               if path.parent.name == "energaizer"]
    looped = sorted(folder.rglob(ZEUS))
    if not clocked or not looped:
        raise InputError(f"{folder} lacks files of EnergAIzer (energaizer/{{a100,a10,dvfs}}.csv) "
                         f"or of Zeus ({ZEUS}); it needs both")
    return pd.concat([_passes(clocked), _loops(looped)], ignore_index=True)


def _passes(paths: list[Path]) -> pd.DataFrame:
    """Return EnergAIzer's rows, without those of passes that failed and of TF32."""
    rows = pd.concat(map(energaizer.read, paths), ignore_index=True)
    rows = rows[(rows["dtype"] != "fp32") | ~rows["model"].isin(_TF32)]
    with TemporaryDirectory() as folder:
        loads = dict(_pass_loads(rows, energaizer.write_configs(Path(folder))))
    keys = list(rows[_CASE].itertuples(index=False, name=None))
    boost = rows["device"].map({name: card.boost_mhz for name, card in load_devices().items()})
    rows = rows.assign(load=[loads[key][0] for key in keys],
                       least_ms=[loads[key][1] for key in keys],
                       share=rows["clock_mhz"] / boost, mean_share=rows["mean_mhz"] / boost)
    rows["step_ms"] = [load.passes_ms for load in rows["load"]]
    ran = rows["measured_ms"] > rows["least_ms"] / rows["mean_share"]  # else it failed, such as for want of memory
    return rows[ran].assign(source="EnergAIzer", licence=energaizer.LICENCE, mode="infer")


def _pass_loads(rows: pd.DataFrame, names: dict[str, str]) -> Iterator[tuple[tuple, tuple]]:
    """Yield each case (_CASE) with its load and the least ms of its FLOPs, whole in its dtype."""
    cases = rows.drop_duplicates(_CASE).groupby(["model", "input", "dtype"])
    for (model, sample, dtype), same in track(cases, "networks"):
        name = dtypes.torch_name(dtype)
        ready = capture.prepared(networks.network(names[model], 1, sample), name)
        for batch_size, devices in same.groupby("batch_size")["device"]:
            network = networks.network(names[model], batch_size, sample)
            graph = capture.of_network(network, dtype=name, ready=ready, device="cuda")
            work = Work.of(graph, "infer", batch_size, "cuda")
            for device in devices:
                (predictor,) = registry.for_devices([device], dtype, shipped=True)
                least_ms = composition.least_ms(work, predictor.model.chip)
                passes = predictor.estimate(work)
                passes = passes.scaled(max(1.0, least_ms / passes.predicted_ms), 0.0)
                yield ((device, model, sample, dtype, batch_size),
                       (Load.of(work, passes, predictor), least_ms))


def _loops(paths: list[Path]) -> pd.DataFrame:
    """Return Zeus's loops at the highest power limit, of networks that ``advise`` knows."""
    rows = pd.concat(map(labels.power_limits, paths), ignore_index=True)
    highest = rows["limit_w"] == rows.groupby("device")["limit_w"].transform("max")
    rows = rows[highest & (rows["model"] != "")].rename(columns={"step_ms": "measured_ms"})
    loads, step_ms = zip(*_loop_loads(rows), strict=True)
    boost = rows["device"].map({name: card.boost_mhz for name, card in load_devices().items()})
    return rows.assign(dtype="fp32", share=1.0, mean_share=1.0, clock_mhz=boost, load=loads,
                       step_ms=step_ms, source="Zeus", licence=labels.ZEUS, mode="train")


def _loop_loads(rows: pd.DataFrame) -> list[tuple[Load, float]]:
    """Return the load and the predicted ms of each step: ``device, model, input, batch_size``."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(_BERT)

        @cache
        def captured(model: str, sample: str) -> CapturedQuery:
            return CapturedQuery(RunConfig(model.replace("bert", folder), 0, sample, "train"))

        @cache
        def answer(device: str, model: str, sample: str, batch_size: int) -> Answer:
            (predictor,) = registry.for_devices([device], "fp32", shipped=True)
            return Answer(captured(model, sample), predictor, batch_size)

        table = rows[["device", "model", "input", "batch_size"]]
        answers = [answer(*row) for row in table.itertuples(index=False, name=None)]
        return [(one.load, one.estimate.predicted_ms) for one in answers]


def fit(rows: pd.DataFrame) -> PowerModel:
    """Fit the model to rows of ``read``; halves of intervals are 1 until errors are known."""
    size = rows.groupby("device")["device"].transform("size").to_numpy()
    weight = np.sqrt(_VOTES / size) / _NOISE
    cards, share = load_devices(), rows["mean_share"].to_numpy()
    terms = np.array([energy.terms(row.load, cards[row.device], row.measured_ms, row.mean_share)
                      for row in rows.itertuples()])
    limit_w = rows["device"].map({name: card.power_w for name, card in cards.items()}).to_numpy()
    power_w = rows["power_w"].to_numpy()

    def power_errors(logs):
        *rates, floor = _USUAL * np.exp(logs * _SPREAD)
        drawn_w = energy.drawn_w(np.array(rates), floor, terms, share)
        return np.append(weight * np.log(energy.limited_w(drawn_w, limit_w) / power_w), logs)

    *rates, floor = _USUAL * np.exp(_solved(power_errors, len(_USUAL)) * _SPREAD)
    return PowerModel(
        rates=dict(zip(TERMS, map(float, rates), strict=True)), voltage_floor=float(floor),
        clocked=_clocked(rows, weight),
        halves=dict.fromkeys(("power", *energy.QUANTITIES), 1.0),
        architectures=tuple(sorted({cards[device].architecture for device in rows["device"]})),
        source=choices(rows["source"].unique()), licence=choices(rows["licence"].unique()))


def _clocked(rows: pd.DataFrame, weight: np.ndarray) -> dict[str, float]:
    """Fit how far times follow the clock to networks that ran at several clocks.

    Errors are those of the ratios of a network's times: its predicted time does not matter.
    """
    launches = np.array([energy.launch_share(load) for load in rows["load"]])
    memory = np.array([load.memory_share for load in rows["load"]])
    share, case = rows["mean_share"].to_numpy(), rows.groupby(_CASE)
    several = case["mean_share"].transform("nunique") > 1
    log_ms = np.log(rows["measured_ms"])

    def errors(logs):
        parts = _USUAL_CLOCKED * np.exp(logs * _SPREAD_CLOCKED)
        error = np.log(energy.slowdown(parts, memory, launches, share)) - log_ms
        error -= error.groupby([rows[name] for name in _CASE]).transform("mean")
        return np.append((weight * error)[several], logs)

    parts = _USUAL_CLOCKED * np.exp(_solved(errors, len(_USUAL_CLOCKED)) * _SPREAD_CLOCKED)
    return dict(zip(("compute", "memory"), map(float, parts), strict=True))


def _solved(errors, count: int) -> np.ndarray:
    return least_squares(errors, np.zeros(count), loss="soft_l1").x


def predicted(model: PowerModel, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the predicted ``time_ms`` at the stated clock, and joules.

    ``joules``: with that time; ``joules_timed``: with the measured one.
    """
    lines = []
    for row in rows.itertuples():
        share, ratio = model.at_clock(row.load, row.device, row.clock_mhz)
        time_ms = row.step_ms * ratio
        joules = [model.watts(row.load, row.device, ms, share) * ms / 1e3
                  for ms in (time_ms, row.measured_ms)]
        lines.append([time_ms, *joules])
    return pd.DataFrame(lines, rows.index, ["time_ms", "joules", "joules_timed"])


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions of ``predicted`` for each row by the model without its card."""
    parts = [predicted(fit(rows[rows["device"] != device]), same)
             for device, same in rows.groupby("device")]
    return pd.concat(parts).loc[rows.index]


def held_out_rows(rows: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Return rows ``held_out`` of joules and times; intervals come from the other cards' errors."""
    joules, clocked = rows["power_w"] * rows["measured_ms"] / 1e3, rows["mode"] == "infer"
    tables = []
    for what, measured, name in ((held_out.JOULES, joules, "joules"),
                                 (held_out.JOULES_TIMED, joules, "joules_timed"),
                                 (held_out.CLOCK, rows["measured_ms"][clocked], "time_ms")):
        part, answer = rows.loc[measured.index], answers.loc[measured.index, name]
        halves = _halves(np.log(answer / measured), part["device"])
        reach = np.exp(part["device"].map({card: halves.drop(card).max() for card in halves.index}))
        clocks = (part["share"] * 100).map(" {:.0f} % of the boost clock".format)
        tables.append(held_out.frame(
            device=part["device"], what=what, kind=held_out.ALL, mode=part["mode"],
            group=part["model"].str.removeprefix("hf:"), batch_size=part["batch_size"],
            condition=part["dtype"], left_out="cards", measured=measured, predicted=answer,
            low=answer / reach, high=answer * reach, source=part["source"], licence=part["licence"],
            case=part["model"].str.removeprefix("hf:") + " " + part["input"] + clocks))
    return pd.concat(tables, ignore_index=True)


def _halves(errors: pd.Series, groups: pd.Series) -> pd.Series:
    return errors.abs().groupby(groups).quantile(scores.COVER)


def _clock_halves(rows: pd.DataFrame, answers: pd.DataFrame) -> dict[str, float]:
    """Return halves per log of the clock, of errors of ratios to a case's highest locked clock."""
    table = rows.assign(**answers, measured_j=rows["power_w"] * rows["measured_ms"])
    table = table[(table["mode"] == "infer") & (table["mean_share"] > 0.99 * table["share"])]
    table = table.sort_values("share").reset_index(drop=True)
    numbers = ["share", "measured_ms", "measured_j", "time_ms", "joules"]
    base = table.groupby(_CASE)[numbers].transform("last")
    ratio = table[numbers] / base
    apart = -np.log(ratio["share"])
    errors = {"time": ratio["time_ms"] / ratio["measured_ms"],
              "energy": ratio["joules"] / ratio["measured_j"]}
    return {name: float((np.log(error).abs() / apart)[apart > _APART].quantile(scores.COVER))
            for name, error in errors.items()}


def ship(rows: pd.DataFrame) -> pd.DataFrame:
    """Learn from rows of ``read``, write what ships and its held-out rows; return scores by card.

    Halves of intervals are the 90 % quantiles of errors on cards left out: of watts for the worst
    card, of ratios at clocks for all.
    """
    answers, model = left_out(rows), fit(rows)
    table = held_out_rows(rows, answers)
    timed = np.log(answers["joules_timed"] / (rows["power_w"] * rows["measured_ms"] / 1e3))
    model.halves.update(power=float(_halves(timed, rows["device"]).max()),
                        **_clock_halves(rows, answers))
    model.save(PATH)
    held_out.save(table, PATH)
    return scores.score_draws(table, ["what", "left_out", "device", "condition"])
