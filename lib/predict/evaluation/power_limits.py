"""Learning what power limits do from Zeus's training loops, scored on cards left out."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict import held_out, scores
from lib.predict.evaluation import power as board_power
from lib.predict.power.energy import ENERGY_PER_BIT, QUANTITIES, PowerModel
from lib.predict.power.limits import PATH, PowerLimits, power, slowdown, width
from lib.predict.published import labels

_CASE = ["device", "dataset", "network", "batch_size", "optimizer"]


def read(folder: Path) -> pd.DataFrame:
    """Return limited runs below a folder with shares ``limit`` and ``drawn``, and factors.

    ``time``, ``power`` and ``energy`` are over those at the highest limit. Raises InputError for
    fewer than two files.
    """
    files = sorted(folder.rglob(board_power.ZEUS))
    if len(files) < 2:
        raise InputError(f"{folder} has no two files summary_power_<device>.csv, of cards to leave "
                         "out one after another")
    rows = pd.concat(map(labels.power_limits, files)).sort_values("limit_w", kind="stable")
    usual = rows.groupby(_CASE)[["limit_w", "time_s", "power_w"]].transform("last")
    rows[["limit", "time", "power"]] = rows[list(usual)] / usual
    rows["energy"] = rows["time"] * rows["power"]
    rows["drawn"] = usual["power_w"] / usual["limit_w"]
    memory = {device: ENERGY_PER_BIT[card.memory] for device, card in load_devices().items()}
    rows["bit"] = rows["device"].map(memory)
    return rows[rows["limit"] < 1].reset_index(drop=True)


def fit(rows: pd.DataFrame) -> PowerLimits:
    """Fit the model to rows of ``read``; halves of intervals are 1 until errors are known."""
    static = float((rows["drawn"] / rows["bit"]).groupby(rows["device"]).min().mean())

    def rates(law, start, *names):
        *given, measured = (rows[name] for name in names)

        def errors(rates):
            return np.log(law(rates, static * rows["bit"], *given) / measured)
        return least_squares(errors, start, bounds=(0.01, 20), loss="soft_l1", f_scale=0.03,
                             diff_step=1e-3).x

    return PowerLimits(float(rows["limit"].min()), static,
                       rates(slowdown, (0.45, 0.9, 0.3, 1.4), "limit", "drawn", "time"),
                       rates(power, (5, 0.8), "limit", "drawn", "power"),
                       dict.fromkeys(QUANTITIES, 1.0), "Zeus", labels.ZEUS)


def with_predicted_power(rows: pd.DataFrame, boards: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of networks that ``advise`` knows, ``drawn`` as predicted without their card.

    ``boards``: rows of ``evaluation.power.read``.
    """
    loads = boards[boards["source"] == "Zeus"].drop_duplicates(["device", "model", "batch_size"])
    rows = rows.merge(loads[["device", "model", "batch_size", "load", "step_ms"]],
                      on=["device", "model", "batch_size"], suffixes=("_measured", ""))
    models = {device: board_power.fit(boards[boards["device"] != device])
              for device in rows["device"].unique()}
    return rows.assign(drawn=[_drawn(models[row.device], row) for row in rows.itertuples()])


def _drawn(model: PowerModel, row) -> float:
    return model.watts(row.load, row.device, row.step_ms) / load_devices()[row.device].power_w


def left_out(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Return rows ``held_out`` of ``with_predicted_power`` (``known``), each card left out.

    Intervals come from the other card's errors. ``half``: that of the worst, in units of ``width``.
    """
    parts = []
    for device, test in known.groupby("device"):
        model = fit(rows[rows["device"] != device])
        factors = model.factors(model.static * test["bit"], test["limit"], test["drawn"])
        parts.append(pd.DataFrame(factors))
    factors, tables = pd.concat(parts).loc[known.index], []
    wide = width(factors["time"])
    for name, factor in factors.items():
        halves = (np.log(known[name] / factor).abs() / wide).groupby(known["device"]) \
            .quantile(scores.COVER)
        others = {device: halves.drop(device).max() for device in halves.index}
        reach = np.exp(wide * known["device"].map(others))
        tables.append(held_out.frame(
            device=known["device"], what=held_out.LIMITS[name], kind=held_out.ALL, mode="train",
            group=known["network"], batch_size=known["batch_size"], condition="fp32",
            left_out="cards", measured=known[name], predicted=factor, low=factor / reach,
            high=factor * reach, source="Zeus", licence=labels.ZEUS,
            case=known["dataset"] + known["limit_w"].map(" {:g} W ".format) + known["optimizer"])
            .assign(half=halves.max()))
    return pd.concat(tables, ignore_index=True)


def ship(folder: Path, boards: pd.DataFrame) -> pd.DataFrame:
    """Learn from the runs below a folder, write what ships and its held-out rows.

    Returns the scores by card. Intervals hold 90 % of the predictions for the card with the largest
    errors when it was left out.
    """
    rows = read(folder)
    table, model = left_out(rows, with_predicted_power(rows, boards)), fit(rows)
    halves = table.groupby("what")["half"].first()
    model.halves.update({name: float(halves[what]) for name, what in held_out.LIMITS.items()})
    model.save(PATH)
    held_out.save(table.drop(columns="half"), PATH)
    return scores.score_draws(table, ["what", "left_out", "device"])
