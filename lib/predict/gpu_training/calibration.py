"""The model of GPUs corrected for one card by networks that its user measured, in timm's layout or in this project's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.measure.statistics import is_usable
from lib.predict.gpu import fit, model, rows
from lib.predict.gpu.fit import Case
from lib.predict.gpu.levels import CALIBRATED, Condition, chip_of, levels_of
from lib.predict.gpu_training import cases
from lib.predict.operators.validation import worse
from lib.predict.published import timm
from lib.predict.scores import half_interval, score
from lib.work import networks

LEAST = 10  # networks: of fewer errors, not even the largest bounds 90 % of new ones
_FOLDS = 5
_ITERATIONS = 60
_CONDITION = ["mode", "precision", "layout", "compiled"]
_SHOWN = 3  # reasons in a summary


@dataclass(frozen=True)
class Calibrated:
    """A calibration, its file, the errors of families left out before and after, and why networks were not used."""

    path: Path
    calibration: model.Calibration
    before: Mapping[str, float]
    after: Mapping[str, float]
    reasons: Mapping[str, str]


def read(path: Path) -> pd.DataFrame:
    """Return the networks of a file: timm's ``benchmark-*.csv``, or a table ``networks`` of this project.

    One row per network: ``network`` (a name for ``networks.network``), ``image_size`` (its sample), ``family``, batch size, ms
    and condition. Raises InputError for a file that is neither, and for one without usable networks of a GPU.
    """
    if path.name.startswith("benchmark-"):
        table = timm.read(path)
        size = table["image_size"].astype(str)
        table = table.assign(network="timm:" + table["network"], image_size="3x" + size + "x" + size,
                             family=table["module"])
    else:
        table = store.read(path, "networks")
        table = table[is_usable(table) & table["device"].str.startswith("cuda")]
        is_tf32 = table["tf32"].astype(bool) & (table["dtype"] == "fp32")
        precision = table["dtype"].where(table["dtype"] == "fp32", "amp_" + table["dtype"])
        table = table.assign(image_size=table["input_shape"].fillna(""), precision=precision.mask(is_tf32, "tf32"),
                             layout=np.where(table["channels_last"], "nhwc", "nchw"),
                             family=table["network"].map(networks.family))
    if table.empty:
        raise InputError(f"{path} has no usable network of a GPU; --networks needs some")
    return table[["network", "image_size", "family", "batch_size", "latency_ms", *_CONDITION]]


def _cases(device: str, table: pd.DataFrame) -> tuple[list[Case], dict[str, str]]:
    """Return the networks by condition, and why some were not captured."""
    vendor = load_devices()[device]
    names = table[["network", "image_size"]].itertuples(index=False, name=None)
    captures, reasons = cases.of_networks(names, lambda name, sample: networks.network(name, rows.BATCH, sample))
    table = cases.with_rows(table, captures)
    parts = []
    for values, part in table.groupby(_CONDITION):
        condition = Condition(*values)
        measured = part.assign(times=part["batch_size"].astype(float) / rows.BATCH).reset_index(drop=True)
        parts.append(Case(measured, device, "measured here", condition, chip_of(vendor, condition),
                          (*levels_of(vendor, condition), CALIBRATED)))
    return parts, reasons


def calibrate(device: str, files_of_networks: Sequence[Path]) -> Calibrated:
    """Fit the level ``calibrated`` of a card to networks that were measured on it, and save it for this machine.

    The interval is that of families left out in turn. Raises InputError for a card without an entry that suffices, for fewer
    than LEAST networks, for networks of one family alone, and where their errors are larger afterwards.
    """
    table = pd.concat(map(read, files_of_networks), ignore_index=True)
    parts, reasons = _cases(device, table)
    used = pd.concat([part.table for part in parts]) if parts else table.iloc[:0]
    count, families = used["network"].nunique(), used["family"].nunique()
    if count < LEAST or families < 2:  # noqa: PLR2004 - one is left out
        raise InputError(f"{count} networks of {families} families are usable, {LEAST} or more of two families are needed"
                         f"{_listed(reasons)}")
    known = pd.DataFrame(model.shipped().levels).T
    before, after = _predicted(known, parts), _left_out(known, parts)
    measured = np.exp(np.concatenate([part.log_ms for part in parts]))
    scored = score(measured, before), score(measured, after)
    if worse(*scored):
        raise InputError(f"the calibration did not help: families left out err by {scored[1]['mape']:.0f} % after it, by "
                         f"{scored[0]['mape']:.0f} % before; nothing is saved")
    fitted = fit.fit(parts, known, _ITERATIONS)
    calibration = model.Calibration(device, fitted.loc[CALIBRATED].to_numpy(), half_interval(np.log(measured / after)), count)
    return Calibrated(calibration.save(model.calibration_path(device)), calibration, *scored, reasons)


def _predicted(fitted: pd.DataFrame, parts: Sequence[Case]) -> np.ndarray:
    return np.concatenate([fit.predicted_ms(fitted, part, part.levels) for part in parts])


def _left_out(known: pd.DataFrame, parts: Sequence[Case]) -> np.ndarray:
    """Return the ms of each network, learned without its family."""
    families = sorted({family for part in parts for family in part.table["family"]})
    place = {family: number % _FOLDS for number, family in enumerate(families)}
    folds = [part.table["family"].map(place).to_numpy() for part in parts]
    predicted = [np.empty(len(part.table)) for part in parts]
    for fold in range(min(_FOLDS, len(families))):
        taught = [part.of(number != fold) for part, number in zip(parts, folds, strict=True) if (number != fold).any()]
        fitted = fit.fit(taught, known, _ITERATIONS)
        for part, number, ms in zip(parts, folds, predicted, strict=True):
            if (number == fold).any():
                ms[number == fold] = fit.predicted_ms(fitted, part.of(number == fold), part.levels)
    return np.concatenate(predicted)


def summary(result: Calibrated) -> str:
    """Say what the calibration gave."""
    before, after, calibration = result.before, result.after, result.calibration
    return (f"{result.path}: {calibration.device} corrected by {calibration.networks} networks; of families left out in turn "
            f"MAPE {before['mape']:.1f} % before (median {before['median']:.1f}, bias {before['bias']:+.1f}), "
            f"{after['mape']:.1f} % after (median {after['median']:.1f}, bias {after['bias']:+.1f}); ranges reach "
            f"{math.exp(calibration.half):.2f} times the prediction{_listed(result.reasons)}")


def _listed(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    examples = [f"{name} ({reason})" for name, reason in list(reasons.items())[:_SHOWN]]
    return f"; {len(reasons)} left out, such as {choices(examples)}"
