"""Learning what power limits do from published training loops, scored on cards and on networks left out beside baselines."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lib import store
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.measure.published import labels
from lib.predict import held_out, registry
from lib.predict.advice.query import Answer, CapturedQuery, Query
from lib.predict.power.limits import ENERGY_PER_BIT, PATH, QUANTITIES, PowerLimits, draw, power, slowdown, static_of, width
from lib.predict.scores import score
from lib.progress import track
from lib.tables import columns

_CASE = ["device", "network", "dataset", "batch_size", "optimizer"]
_BERT = {"model_type": "bert", "architectures": ["BertModel"]}  # of the usual size
_START = {"drawn": [(0.9, 0.3, 1.2), (0.6, 0.3, 1.2), (0.1, 0.01, 1)], "power": [(5, 1, 20), (0.8, 0.5, 1.5)],
          "clock": [(0.45, 0.05, 0.59), (0.9, 0.6, 1.4), (0.3, 0.02, 2), (1.4, 0.5, 3)]}  # start, least, most
_NOMINAL = 0.9
_SPLITS = {"cards": "device", "networks": "network"}
_LEARNERS = ("this model", "no change", "in proportion to power", "power law of the limit")
_SCORED = ("what", "left_out", "condition", "unit")


def read(folder: Path) -> pd.DataFrame:
    """Return limited runs below a folder with shares of the most power, and ``time`` and ``energy`` over those without a limit.

    ``busy`` and ``memory`` (see ``limits``) of networks that ``advise`` knows, else NaN. Raises InputError without two cards.
    """
    files = [path for path in sorted(folder.rglob("summary_power_*.csv")) if path.is_file()]
    rows = pd.concat([labels.power_limits(path) for path in files]) if files else pd.DataFrame(columns=_CASE)
    if rows["device"].nunique() < len(_SPLITS):
        raise InputError(f"{folder} has runs under power limits, summary_power_<device>.csv, of fewer than two cards")
    rows["most_w"] = rows["device"].map(lambda device: load_devices()[device].power_w)
    usual = rows[rows["limit_w"] == rows["most_w"]].set_index(_CASE)[["time_s", "power_w"]]
    rows = rows.join(usual, on=_CASE, rsuffix="_usual").query("limit_w < most_w and time_s_usual > 0")
    ratio = rows["time_s"] / rows["time_s_usual"]
    rows = rows.assign(limit=rows["limit_w"] / rows["most_w"], drawn=rows["power_w_usual"] / rows["most_w"], time=ratio,
                       energy=ratio * rows["power_w"] / rows["power_w_usual"])
    return rows.merge(_features(rows), how="left").reset_index(drop=True)


def _features(rows: pd.DataFrame) -> pd.DataFrame:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_BERT))
        cases = rows[rows["model"] != ""][["device", "model", "input", "batch_size"]].drop_duplicates()
        return pd.concat([cases, pd.DataFrame(list(_roofs(cases, folder)), cases.index, ["busy", "memory"])], axis=1)


def _roofs(cases: pd.DataFrame, folder: str) -> Iterator[tuple[float, float]]:
    captured: dict[str, CapturedQuery] = {}
    for case in track(list(cases.itertuples()), "networks"):
        query = Query(case.model.replace("bert", folder), int(case.batch_size), case.input, "train")
        if case.model not in captured:
            captured[case.model] = CapturedQuery(query)
        (predictor,) = registry.for_devices([case.device], "fp32")
        yield Answer(captured[case.model].with_changes(batch_size=query.batch_size), predictor).roofline


def fit(rows: pd.DataFrame) -> PowerLimits:
    """Fit the model to rows of ``read``; its intervals are those of nobody yet."""
    devices = load_devices()
    least = rows.groupby("device")["drawn"].min()
    static = float(np.mean([share / ENERGY_PER_BIT[devices[device].memory] for device, share in least.items()]))
    of_rows, known = _static(static, rows), rows["busy"].notna()
    part, time = rows[known], rows["time"]
    rates = {
        "drawn": _solved("drawn", lambda rates: draw(rates, of_rows[known], part["busy"], part["memory"]) / part["drawn"]),
        "clock": _solved("clock", lambda rates: slowdown(rates, of_rows, rows["limit"], rows["drawn"]) / time),
        "power": _solved("power", lambda rates: power(rates, of_rows, rows["limit"], rows["drawn"]) * time / rows["energy"])}
    return PowerLimits(static, **rates, halves=dict.fromkeys(QUANTITIES, 1.0), source="Zeus", licence=labels.ZEUS)


def _static(static: float, rows: pd.DataFrame) -> pd.Series:
    return rows["device"].map({device: static_of(static, load_devices()[device]) for device in rows["device"].unique()})


def _solved(name: str, ratio: Callable[[np.ndarray], pd.Series]) -> np.ndarray:
    start, least, most = zip(*_START[name], strict=True)
    return least_squares(lambda rates: np.log(ratio(rates)), start, bounds=(least, most), loss="soft_l1", f_scale=0.03,
                         diff_step=1e-3).x


def predict(model: PowerLimits, rows: pd.DataFrame, known: bool) -> dict[str, pd.Series]:
    """Return the factors of time and energy; ``known``: the power drawn without a limit was measured."""
    static = _static(model.static, rows)
    drawn = rows["drawn"] if known else draw(model.drawn, static, rows["busy"], rows["memory"])
    time = slowdown(model.clock, static, rows["limit"], drawn)
    return {"time": time, "energy": time * power(model.power, static, rows["limit"], drawn)}


def _baselines(train: pd.DataFrame, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the answers of simpler learners; the second knows the power drawn without a limit."""
    short = np.minimum(1, rows["limit"] / rows["drawn"])
    log = np.log(train["limit"])
    slopes = {name: float(log @ np.log(train[name]) / (log @ log)) for name in QUANTITIES}
    answers = [dict.fromkeys(QUANTITIES, 1.0), {"time": 1 / short, "energy": short},
               {name: rows["limit"] ** slope for name, slope in slopes.items()}]
    return dict(zip(_LEARNERS[1:], answers, strict=True))


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows ``held_out`` of cards and of networks left out, with ``learner``; power measured, or predicted.

    An interval comes from the errors on the other cards, or networks, that were left out.
    """
    parts = []
    for split, unit in _SPLITS.items():
        for name, test in rows.groupby(unit):
            train = rows[rows[unit] != name]
            model = fit(train)
            parts_of = {"power measured": test, "power predicted": test[test["busy"].notna()]}
            for condition, part in ((name, part) for name, part in parts_of.items() if len(part)):
                of_all = {_LEARNERS[0]: predict(model, part, condition == "power measured"), **_baselines(train, part)}
                for (learner, answers), quantity in ((pair, what) for pair in of_all.items() for what in QUANTITIES):
                    frame = held_out.frame(
                        device=part["device"], what=held_out.LIMITS[quantity], mode="train", condition=condition,
                        kind=held_out.ALL, group=part["network"], batch_size=part["batch_size"], left_out=split,
                        case=part["dataset"] + " " + part["optimizer"] + part["limit_w"].map(" {:g} W".format),
                        measured=part[quantity], predicted=answers[quantity], source="Zeus", licence=labels.ZEUS)
                    parts.append(frame.assign(learner=learner, unit=name, width=width(answers["time"])))
    table = pd.concat(parts, ignore_index=True)
    return pd.concat([_with_intervals(part) for _, part in table.groupby(["what", "condition", "left_out", "learner"])])


def _with_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    error = np.abs(np.log(rows["measured"] / rows["predicted"])) / rows["width"]
    half = rows["unit"].map({unit: error[rows["unit"] != unit].quantile(_NOMINAL) for unit in rows["unit"].unique()})
    reach = np.exp(half * rows["width"])
    return rows.assign(low=rows["predicted"] / reach, high=rows["predicted"] * reach, half=half)


def ship(folder: Path) -> pd.DataFrame:
    """Learn from the runs below a folder, write what ships and its held-out rows, and return the scores of all learners.

    The shipped intervals are those of the card with the larger errors.
    """
    rows = read(folder)
    table = left_out(rows)
    ours = table[table["learner"] == _LEARNERS[0]]
    of_cards = ours[(ours["left_out"] == "cards") & (ours["condition"] == "power predicted")].groupby("what")["half"].max()
    model = fit(rows)
    model.halves.update({name: float(of_cards[held_out.LIMITS[name]]) for name in QUANTITIES})
    model.save(PATH)
    held_out.save(held_out.frame(**ours.drop(columns=["learner", "unit", "width", "half"])), PATH)
    scores = pd.DataFrame([{"kind": "power", "family": ", ".join(family), "learner": learner,
                            **score(*(part[name].to_numpy(float) for name in ("measured", "predicted", "low", "high")))}
                           for (*family, learner), part in table.groupby([*_SCORED, "learner"])])[columns("scores")]
    store.write(scores, PATH.with_name("limits_scores.csv"), "scores", derived=True)
    return scores
