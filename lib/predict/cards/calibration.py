"""A card model corrected by a few networks that its user measured, in timm's layout or in this project's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure.statistics import is_usable
from lib.predict import boards, scores
from lib.predict.cards import card_model, features, fitting, learning, rows
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.fitting import ConditionNetworks, WeightsByCondition
from lib.predict.cards.whole_networks import LAYOUTS, condition_of
from lib.predict.operators.validation import worse
from lib.predict.published import timm
from lib.predict.scores import half_interval
from lib.work import networks
from lib.work.run_config import RunConfig

LEAST = 10  # networks: of fewer errors, not even the largest bounds 90 % of new ones
_COLUMNS = ["network", "image_size", "module", "batch_size", "latency_ms", *learning.CONDITION]
_SHOWN = 3  # reasons in a summary


@dataclass(frozen=True)
class Calibrated:
    """A calibrated model, its file, the errors of families left out before and after, and why networks were not used."""

    path: Path
    card: CardModel
    networks: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    reasons: Mapping[str, str]


def read(path: Path) -> pd.DataFrame:
    """Return inference in 16 bits of a file: timm's ``benchmark-*.csv``, or a table ``networks`` of this project.

    One row per network: ``network`` (a name for ``networks.network``), ``image_size`` (its sample), ``module`` (its family),
    batch size, ms and condition. Raises InputError for a file that is neither, and for one without such rows.
    """
    if path.name.startswith("benchmark-"):
        table = timm.read(path)
        size = table["image_size"].astype(str)
        table = table.assign(network="timm:" + table["network"], image_size="3x" + size + "x" + size)
    else:
        table = store.read(path, "networks")
        table = table[is_usable(table) & table["device"].str.startswith("cuda")]
        family = table["network"].str.extract(r"(?:.*:)?([A-Za-z]*)", expand=False).str.lower()
        table = table.assign(
            image_size=table["input_shape"].fillna(""), module=family, torch="",
            precision=table["dtype"].where(table["dtype"] == "fp32", "amp_" + table["dtype"]),
            layout=np.where(table["channels_last"], "nhwc", "nchw"))
    table = table[(table["mode"] == "infer") & (table["precision"] != "fp32")][_COLUMNS]
    if table.empty:
        raise InputError(f"{path} has no 16-bit inference on a GPU; --networks needs it")
    return table


def _images(name: str, sample: str) -> networks.Network:
    """Return a network that takes images; InputError for another."""
    network = networks.network(name, rows.BATCH, sample)
    if len(network.shape) != 4:  # noqa: PLR2004 - batch, channels, height, width
        raise InputError("it takes no images")
    return network


def _cases(start: CardModel, table: pd.DataFrame) -> list[ConditionNetworks]:
    """Return the networks of each condition, with the weights of the one most like it: of the same torch or the newest."""
    parts = []
    for values, part in table.groupby(learning.CONDITION):
        wanted = features.Condition(*values)
        layout = next(name for name, short in LAYOUTS.items() if short == wanted.layout)
        config = RunConfig(mode=wanted.mode, dtype="bf16" if "bf16" in wanted.precision else "fp16", layout=layout,
                           compiled=wanted.compiled)
        like = condition_of(start, config, wanted.torch) or condition_of(start, config)
        if like is None:
            raise InputError(f"no card was measured under {wanted.name}, from which {start.device} could start; there are: "
                             f"{choices(condition.name for condition in start.conditions)}")
        measured = replace(wanted, torch=wanted.torch or like.torch)
        parts.append(ConditionNetworks(part.reset_index(drop=True), measured, start.chip, learning.shared(wanted),
                                       start.conditions[like].weights))
    return learning.with_folds(parts)


def _shifted(parts: Sequence[ConditionNetworks]) -> WeightsByCondition:
    """Fit the shift of weights to networks; return what gives the weights of a condition."""
    shift = fitting.shift(parts)
    return lambda part: part.start + shift


def calibrate(device: str, files_of_networks: Sequence[Path]) -> Calibrated:
    """Correct a card's model by networks that were measured on it, and save it for this machine.

    The interval is that of families left out in turn. Raises InputError for a card of which nothing is known, for fewer than
    LEAST networks, for networks of one family alone, and where their errors are larger afterwards.
    """
    start = card_model.load_for(device, shipped=True)
    if start is None:
        raise InputError(f"{device} cannot be calibrated: params/devices.yaml needs an entry with matrix units and an fp16 "
                         "rate")
    start = replace(start, shared_model=None)  # it holds at sustained rates, a card's own weights at its vendor's
    table = pd.concat(map(read, files_of_networks), ignore_index=True)
    names = table[["network", "image_size"]]
    captures, reasons = rows.of_networks(names.itertuples(index=False, name=None), _images)
    table = learning.with_rows(table, captures)
    count, families = len(captures), table["module"].nunique()
    if count < LEAST or families < 2:  # noqa: PLR2004 - one is left out
        raise InputError(f"{count} networks of {families} families are usable, {LEAST} or more of two families are needed"
                         f"{_listed(reasons)}")
    parts = _cases(start, table)
    before = pd.concat([part.predicted(part.start) for part in parts])
    after = learning.left_out(parts, _shifted)
    scored = [scores.score(np.exp(part["log_ms"]), np.exp(part["log_predicted"])) for part in (before, after)]
    if worse(*scored):
        raise InputError(f"the calibration did not help: families left out err by {scored[1]['mape']:.0f} % after it, by "
                         f"{scored[0]['mape']:.0f} % before; nothing is saved")
    card = _corrected(start, parts, after, count)
    return Calibrated(card.save(card_model.folder() / f"{device}.json"), card, count, *scored, reasons)


def _corrected(start: CardModel, parts: Sequence[ConditionNetworks], left_out: pd.DataFrame, networks_used: int) -> CardModel:
    """Return the model whose weights are shifted: conditions that were measured have their own errors, others keep theirs.

    Shared conditions have no torch version of their own. Those not measured here are labelled with the newest torch of the
    measured networks.
    """
    shift, half = fitting.shift(parts), half_interval(learning.error(left_out))
    newest = max((part.condition.torch for part in parts), key=features.version)
    measured, fitted = {part.condition.name_without_torch for part in parts}, {}
    for condition in sorted(start.conditions, key=lambda condition: features.version(condition.torch)):  # the newest stands
        before = start.conditions[condition]
        if condition.mode == "train":
            continue  # the shared model keeps answering: files have inference alone
        shifted = replace(before, weights=before.weights + shift, corrected=networks_used)
        if shifted.basis != "others":
            fitted[condition] = shifted
        elif condition.name_without_torch not in measured:
            fitted[replace(condition, torch=newest)] = replace(shifted, scored=condition.name)
    for part in parts:
        scored_on = left_out[left_out["condition"] == part.condition.name]
        fitted[part.condition] = replace(learning.scored(part.start + shift, half, scored_on, "few"), corrected=networks_used)
    return replace(start, conditions=fitted)


def summary(result: Calibrated) -> str:
    """Say what the calibration gave."""
    before, after = result.before, result.after
    half = max(fitted.half for fitted in result.card.conditions.values() if fitted.basis == "few")
    spread = boards.shipped().of(boards.network_kind("infer", "fp16"))
    elsewhere = f" (on a board of others {math.exp(spread.half(half)):.2f})" if spread else ""
    return (f"{result.path}: {result.card.device} corrected by {result.networks} networks; of families left out in turn "
            f"MAPE {before['mape']:.1f} % before (median {before['median']:.1f}, bias {before['bias']:+.1f}), "
            f"{after['mape']:.1f} % after (median {after['median']:.1f}, bias {after['bias']:+.1f}); ranges reach "
            f"{math.exp(half):.2f} times the prediction{elsewhere}{_listed(result.reasons)}")


def _listed(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    examples = [f"{name} ({reason})" for name, reason in list(reasons.items())[:_SHOWN]]
    return f"; {len(reasons)} left out, such as {choices(examples)}"
