"""Learning what power limits do from published training loops, scored on cards and on networks left out."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict import held_out, registry, scores
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.power.limits import ENERGY_PER_BIT, PATH, QUANTITIES, PowerLimits, draw, power, slowdown, width
from lib.predict.published import labels
from lib.work.run_config import RunConfig

SPLITS = {"device": "cards", "network": "networks"}
_CASE = "device dataset network batch_size optimizer".split()
_WORK = ["device", "model", "input", "batch_size"]
_BERT = json.dumps({"model_type": "bert", "architectures": ["BertModel"]})  # of the usual size
_NOMINAL = 0.9


def read(folder: Path) -> pd.DataFrame:
    """Return limited runs below a folder with shares ``limit`` and ``drawn``, and factors ``time``, ``power`` and ``energy``.

    ``busy`` and ``memory`` (see ``limits.draw``) are NaN for networks that ``advise`` does not know. Raises InputError for
    fewer than two files.
    """
    files = sorted(folder.rglob("summary_power_*.csv"))
    if len(files) < len(SPLITS):
        raise InputError(f"{folder} has no two files summary_power_<device>.csv, of cards to leave out one after another")
    rows = pd.concat(map(labels.power_limits, files)).sort_values("limit_w", kind="stable")
    usual = rows.groupby(_CASE)[["limit_w", "time_s", "power_w"]].transform("last")
    rows[["limit", "time", "power"]] = rows[list(usual)] / usual
    memory = {device: ENERGY_PER_BIT[card.memory] for device, card in load_devices().items()}
    rows = rows.assign(energy=rows["time"] * rows["power"], drawn=usual["power_w"] / usual["limit_w"],
                       bit=rows["device"].map(memory)).query("limit < 1")
    work = rows.loc[rows["model"] != "", _WORK].drop_duplicates()
    work[["busy", "memory"]] = _rooflines(work)
    return rows.merge(work, how="left")


def _rooflines(work: pd.DataFrame) -> list[tuple[float, float]]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(_BERT)
        captured = cache(lambda model, shape: CapturedQuery(RunConfig(model.replace("bert", folder), 0, shape, "train")))
        return [Answer(captured(model, shape), registry.for_devices([device], "fp32")[0], batch_size).roofline
                for device, model, shape, batch_size in work.itertuples(index=False)]


def fit(rows: pd.DataFrame) -> PowerLimits:
    """Fit the model to rows of ``read``; halves of intervals are 1 until errors are known."""
    static = float((rows["drawn"] / rows["bit"]).groupby(rows["device"]).min().mean())

    def rates(law, start, *names):
        part = rows.dropna(subset=names)
        *given, measured = (part[name] for name in names)
        return least_squares(lambda rates: np.log(law(rates, static * part["bit"], *given) / measured), start,
                             bounds=(0.01, 20), loss="soft_l1", f_scale=0.03, diff_step=1e-3).x

    return PowerLimits(float(rows["limit"].min()), static, rates(draw, (0.9, 0.6, 0.1), "busy", "memory", "drawn"),
                       rates(slowdown, (0.45, 0.9, 0.3, 1.4), "limit", "drawn", "time"),
                       rates(power, (5, 0.8), "limit", "drawn", "power"), dict.fromkeys(QUANTITIES, 1.0), "Zeus", labels.ZEUS)


def predicted(model: PowerLimits, rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the factors of QUANTITIES."""
    static = model.static * rows["bit"]
    return model.factors(static, rows["limit"], draw(model.drawn, static, rows["busy"], rows["memory"]))


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows ``held_out`` of networks that ``advise`` knows, each card and each network left out.

    Intervals come from the other cards' or networks' errors. Column ``half``: that of the worst of all, in units of ``width``.
    """
    tables, part = [], rows.dropna(subset="busy")
    for unit, split in SPLITS.items():
        factors = pd.concat([pd.DataFrame(predicted(fit(rows[rows[unit] != name]), test)) for name, test in part.groupby(unit)])
        for name, factor in factors.loc[part.index].items():
            wide = width(factors["time"].loc[part.index])
            halves = (np.log(part[name] / factor).abs() / wide).groupby(part[unit]).quantile(_NOMINAL)
            reach = np.exp(wide * part[unit].map({case: halves.drop(case).max() for case in halves.index}))
            tables.append(held_out.frame(
                device=part["device"], what=held_out.LIMITS[name], kind=held_out.ALL, mode="train", group=part["network"],
                batch_size=part["batch_size"], condition="fp32", left_out=split, measured=part[name], predicted=factor,
                low=factor / reach, high=factor * reach, source="Zeus", licence=labels.ZEUS,
                case=part["dataset"] + part["limit_w"].map(" {:g} W ".format) + part["optimizer"]).assign(half=halves.max()))
    return pd.concat(tables, ignore_index=True)


def ship(folder: Path) -> pd.DataFrame:
    """Learn from the runs below a folder, write what ships and its held-out rows, and return the scores by card.

    Its intervals hold 90 % of the predictions for the card with the largest errors when it was left out.
    """
    rows = read(folder)
    table, model = left_out(rows), fit(rows)
    halves = table[table["left_out"] == "cards"].groupby("what")["half"].first()
    model.halves.update({name: float(halves[what]) for name, what in held_out.LIMITS.items()})
    model.save(PATH)
    held_out.save(table.drop(columns="half"), PATH)
    return scores.score_draws(table, ["what", "left_out", "device"])
