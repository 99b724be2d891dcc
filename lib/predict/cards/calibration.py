"""A card model corrected by a few networks that its user measured, in timm's layout or in this project's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib import store
from lib.errors import InputError, choices
from lib.measure.published import whole_networks
from lib.measure.statistics import VERDICTS
from lib.predict.cards import answers, card_model, fitting, learning, rows
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.features import Condition, version
from lib.predict.cards.fitting import Cases
from lib.predict.operators.validation import half_interval, worse
from lib.predict.scores import score
from lib.work import networks
from lib.work.networks import Network

Measured = Mapping[Condition, tuple[pd.DataFrame, Cases, np.ndarray]]  # networks, what is fitted, weights to start from
LEAST = 10  # fewer have no largest error that holds 90 % of others
_COLUMNS = ("name", "sample", "module", "batch_size", "latency_ms", "mode", "precision", "layout", "compiled", "torch")
_SHOWN = 3  # reasons in a summary


@dataclass(frozen=True)
class Calibrated:
    """A calibrated model and where it was saved, errors before and after of families left out, and what was left out why."""

    path: Path
    card: CardModel
    networks: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    reasons: Mapping[str, str]


def read(path: Path) -> pd.DataFrame:
    """Return inference in 16 bits of a file: timm's ``benchmark-*.csv``, or a table ``networks`` of this project.

    A row a network (``name`` as ``networks.network`` takes it, ``sample``), its family (``module``), batch size, ms and
    condition. Raises InputError for a file that is neither, and for one without such rows.
    """
    table = _of_timm(path) if path.name.startswith("benchmark-") else _of_project(path)
    table = table[(table["mode"] == "infer") & (table["precision"] != "fp32")][list(_COLUMNS)]
    if table.empty:
        raise InputError(f"{path} has no inference in 16 bits on a GPU, which is what cards are compared by")
    return table


def _of_timm(path: Path) -> pd.DataFrame:
    table = whole_networks.read(path)
    size = table["image_size"].astype(str)
    return table.assign(name="timm:" + table["network"], sample="3x" + size + "x" + size)


def _of_project(path: Path) -> pd.DataFrame:
    table = store.read(path, "networks")
    table = table[(table["status"] == "ok") & (table["verdict"] != VERDICTS[-1]) & table["device"].str.startswith("cuda")]
    family = table["network"].str.extract(r"(?:.*:)?([A-Za-z]*)", expand=False)
    return table.assign(name=table["network"], sample=table["input_shape"].fillna(""), module=family.str.lower(),
                        precision=np.where(table["dtype"] == "fp32", "fp32", "amp_" + table["dtype"]),
                        layout=np.where(table["channels_last"], "nhwc", "nchw"), torch="")


def _images(name: str, sample: str) -> Network:
    """Return a network that takes images; InputError for another."""
    network = networks.network(name, rows.BATCH, sample)
    if len(network.shape) != 4:  # noqa: PLR2004 - batch, channels, height, width
        raise InputError("it takes no images")
    return network


def _like(card: CardModel, wanted: Condition) -> Condition | None:
    """Return the condition of a model that is most like another: run so, of the same torch or else the newest."""
    layout = next(name for name, short in answers.LAYOUTS.items() if short == wanted.layout)
    dtype = "bf16" if "bf16" in wanted.precision else "fp16"
    return answers.condition_of(card, dtype, wanted.mode, layout, wanted.compiled, wanted.torch) or \
        answers.condition_of(card, dtype, wanted.mode, layout, wanted.compiled)


def _cases(start: CardModel, table: pd.DataFrame, captures: Mapping[tuple[str, str], pd.DataFrame]) -> Measured:
    """Return the networks of each condition, what is fitted to them, and the weights that they start from."""
    by_condition = {}
    for values, rows_of in table.groupby(["mode", "precision", "layout", "compiled", "torch"]):
        wanted = Condition(*values)
        like = _like(start, wanted)
        if like is None:
            raise InputError(f"no card was measured under {wanted.name}, from which {start.device} could start; there are: "
                             f"{choices(known.name for known in start.conditions)}")
        condition, part = replace(wanted, torch=wanted.torch or like.torch), rows_of.reset_index(drop=True)
        frames = [captures[key] for key in zip(part["name"], part["sample"], strict=True)]
        cases = learning.cases_of(part, frames, start.chip, condition)
        by_condition[condition] = (part, cases, start.conditions[like].weights)
    return by_condition


def _left_out(by_condition: Measured) -> dict[Condition, np.ndarray]:
    """Return the log ms that is predicted of each network without its family."""
    parts = [part.assign(network=part["name"], image_size=part["sample"]) for part, *_ in by_condition.values()]
    place = learning.fold_of(parts)
    predicted = {condition: np.full(len(part), np.nan) for condition, (part, *_) in by_condition.items()}
    for fold in sorted(set(place.values())):
        test = {condition: (part["module"].map(place) == fold).to_numpy() for condition, (part, *_) in by_condition.items()}
        training = {condition: fitting.part_of(cases, np.flatnonzero(~test[condition]))
                    for condition, (_, cases, _) in by_condition.items() if not test[condition].all()}
        shift = fitting.shift({condition: by_condition[condition][2] for condition in training}, training)
        for condition, (_, cases, start) in by_condition.items():
            predicted[condition][test[condition]] = fitting.predict(cases, start + shift)[test[condition]]
    return predicted


def calibrate(device: str, files_of_networks: Sequence[Path], folder: Path | None = None) -> Calibrated:
    """Correct what is known of a card by networks that were measured on it, and save it for this machine.

    The interval is that of families left out in turn. Raises InputError for a card of which nothing is known, for fewer than
    LEAST networks, for networks of cases family alone, and where their errors are larger afterwards.
    """
    start = card_model.of_card(device, shipped=True)
    if start is None:
        raise InputError(f"{device} is no card that starts from others: no entry of params/devices.yaml with matrix units "
                         "and a rate in fp16")
    start = replace(start, others=None)  # what other cards say is at other rates than what this one's own networks do
    table = pd.concat([read(path) for path in files_of_networks], ignore_index=True)
    captures, reasons = rows.of_networks(table[["name", "sample"]].itertuples(index=False, name=None), _images)
    table = table[[key in captures for key in zip(table["name"], table["sample"], strict=True)]]
    count = len(table[["name", "sample"]].drop_duplicates())
    if count < LEAST or table["module"].nunique() < 2:  # noqa: PLR2004 - cases is left out
        raise InputError(f"{count} networks of {table['module'].nunique()} families are usable, {LEAST} or more of two "
                         f"families are needed{_listed(reasons)}")
    by_condition = _cases(start, table, captures)
    measured = np.concatenate([cases.log_ms for _, cases, _ in by_condition.values()])
    before = np.concatenate([fitting.predict(cases, weights) for _, cases, weights in by_condition.values()])
    predicted = _left_out(by_condition)
    after = np.concatenate(list(predicted.values()))
    scored = [score(np.exp(measured), np.exp(log_ms)) for log_ms in (before, after)]
    if worse(*scored):
        raise InputError(f"the calibration did not help: families left out err by {scored[1]['mape']:.0f} % after it, by "
                         f"{scored[0]['mape']:.0f} % before; nothing is saved")
    card = _corrected(start, by_condition, predicted, half_interval(measured - after), count)
    return Calibrated(card.save((folder or card_model.folder()) / f"{device}.json"), card, count, *scored, reasons)


def _corrected(start: CardModel, by_condition: Measured, predicted: Mapping[Condition, np.ndarray], half: float,
               networks_used: int) -> CardModel:
    """Return the model whose weights are shifted: conditions that were measured have their own errors, others keep theirs.

    What cards share is of no version of torch: it takes that of the networks that were measured, where these ran otherwise.
    """
    shift = fitting.shift({condition: weights for condition, (_, _, weights) in by_condition.items()},
                          {condition: cases for condition, (_, cases, _) in by_condition.items()})
    newest = max((condition.torch for condition in by_condition), key=version)
    measured, fitted = {condition.how for condition in by_condition}, {}
    for condition in sorted(start.conditions, key=lambda known: version(known.torch)):  # of those alike the newest stands
        before = start.conditions[condition]
        shifted = replace(before, weights=before.weights + shift, corrected=networks_used)
        if shifted.basis != "others":
            fitted[condition] = shifted
        elif condition.how not in measured:
            fitted[replace(condition, torch=newest)] = replace(shifted, scored=condition.name)
    for condition, (part, cases, weights) in by_condition.items():
        few = learning.scored(weights + shift, half, part, predicted[condition], cases.log_ms, "few")
        fitted[condition] = replace(few, corrected=networks_used)
    return replace(start, conditions=fitted)


def summary(result: Calibrated) -> str:
    """Say what the calibration gave."""
    before, after = result.before, result.after
    return (f"{result.path}: {result.card.device} corrected by {result.networks} networks; of families left out in turn "
            f"MAPE {before['mape']:.1f} % before (median {before['median']:.1f}, bias {before['bias']:+.1f}), "
            f"{after['mape']:.1f} % after (median {after['median']:.1f}, bias {after['bias']:+.1f}){_listed(result.reasons)}")


def _listed(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    examples = [f"{name} ({reason})" for name, reason in list(reasons.items())[:_SHOWN]]
    return f"; {len(reasons)} left out, such as {choices(examples)}"
