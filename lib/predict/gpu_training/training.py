"""Training of the model of GPUs: with families and cards left out for held-out rows, then on all cases."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib import paths
from lib.config.definitions import load_devices
from lib.predict import held_out
from lib.predict.evaluation import outsiders
from lib.predict.gpu import features, fit, form, model
from lib.predict.gpu.fit import Case
from lib.predict.gpu.model import MEASURED, NEW, interval_keys
from lib.predict.gpu_training import cases as cases_of
from lib.predict.networks import architectures
from lib.predict.scores import COVER
from lib.progress import track

FOLDS = 3  # of families
CARD_FOLDS = 3
_LEAST = 40  # labels of a class of questions, and it has a range of its own
_OF_SOURCES = ("host:", "source:")  # levels that an answer does not have
_QUESTION = ["scope", "way", "bits", "group"]
_WIDEST = 2.0  # half width in log time at most
LICENCES = {"timm": "Apache-2.0, huggingface/pytorch-image-models", "KernelBench": "MIT, ScalingIntelligence/KernelBench",
            "torchvision cards": "MIT, ryujaehun/pytorch-gpu-benchmark", "NeuSight": "MIT, sitar-lab/NeuSight",
            "DeepBench": "Apache-2.0, baidu-research/DeepBench", "this project": "MIT, this project"}


def gathered(folder: Path) -> tuple[list[Case], list[Case], dict[str, str]]:
    """Return all cases, those of the final set of families apart, and why networks of timm are not among them.

    Cases are the labels and KernelBench's modules in a folder, imported tables of timm, and this project's networks.
    """
    labels = outsiders.read(folder, paths.REFERENCE, with_learned=True)
    table = cases_of.timm_tables()
    table, reasons = cases_of.captured(table[table["device"].isin(load_devices())].reset_index(drop=True))
    is_final = cases_of.is_final(table["module"])
    found = [*cases_of.of_labels(labels[labels["source"] != "timm"]), *cases_of.of_timm(table[~is_final])]
    boards = [path.parent for path in folder.rglob("operators.parquet")]
    modules = [case for board in boards for case in cases_of.of_kernelbench(board)]
    return [*found, *modules], cases_of.of_timm(table[is_final], least=1), reasons


def dealt(names: Iterable[str], folds: int) -> dict[str, int]:
    """Return a fold for each name, those with most rows first, each to the smallest fold."""
    sizes = pd.Series(list(names)).value_counts().sort_index().sort_values(ascending=False, kind="stable")
    loads, place = np.zeros(folds), {}
    for name, size in sizes.items():
        place[name] = int(np.argmin(loads))
        loads[place[name]] += size
    return place


def left_out(cases: Sequence[Case]) -> pd.DataFrame:
    """Predict each network without its family, with its card measured by others and with its card left out as well."""
    families = dealt((family for case in cases for family in case.table["family"]), FOLDS)
    cards = dealt((case.device for case in cases for _ in range(len(case.table))), CARD_FOLDS)
    jobs = [(fold, None) for fold in range(FOLDS)] + [(fold, card) for fold in range(FOLDS) for card in range(CARD_FOLDS)]
    return pd.concat([_job(cases, families, cards, *job) for job in track(jobs, "folds")], ignore_index=True)


def fitted_to(cases: Sequence[Case]) -> pd.DataFrame:
    """Fit the levels of each element size by itself: they have none in common."""
    sizes = sorted({case.condition.bits for case in cases})
    return pd.concat([fit.fit([case for case in cases if case.condition.bits == bits]) for bits in sizes])


def _job(cases: Sequence[Case], families: dict[str, int], cards: dict[str, int], fold: int, card: int | None) -> pd.DataFrame:
    """Fit without a fold of families and, unless None, a fold of cards; return what it predicts of both."""
    taught, asked = [], []
    for case in cases:
        out = (case.table["family"].map(families) == fold).to_numpy()
        if (card is None or cards[case.device] != card) and not out.all():
            taught.append(case.of(~out))
        if (card is None or cards[case.device] == card) and out.any():
            asked.append(case.of(out))
    fitted = fitted_to(taught)
    return pd.concat([_predicted(fitted, case, fold) for case in asked], ignore_index=True)


def _predicted(fitted: pd.DataFrame, case: Case, fold: int) -> pd.DataFrame:
    """Return predictions of a case by the levels that an answer has: that of a host is not known."""
    vendor = load_devices()[case.device]
    levels = [level for level in case.levels if not level.startswith(_OF_SOURCES)]
    scope = MEASURED if f"device:{vendor.id}:{case.condition.bits}" in fitted.index else NEW
    terms, weights = case.terms, torch.as_tensor(fit.weights_of(fitted, levels))[None]
    row_ms = form.kernels_ms(terms, weights).numpy()
    _, launches_ms = form.both_ms(terms, weights)
    ms = np.exp(form.log_ms(terms, weights).numpy())
    groups = model.groups_of(terms, row_ms, launches_ms.numpy())
    columns = [name for name in ("network", "family", "batch_size", "level") if name in case.table]
    return case.table[columns].assign(
        device=case.device, source=case.source, mode=case.condition.mode, way=case.condition.way, bits=case.condition.bits,
        condition=case.condition.name, scope=scope, group=groups, fold=fold, predicted=ms, measured=np.exp(case.log_ms),
        kind=case.table["rows"].map(architectures.of_rows), roof=_roof_ms(terms))


def _roof_ms(terms: features.Terms) -> np.ndarray:
    """Return the ms of each network by a simple rule: a soft roofline at 70 % of the stated peaks, and 27.6 us a launch."""
    share, launch_ms = 0.7, 0.0276
    roof = (terms.move_ms ** form.SOFT).index_add(0, terms.computes, terms.compute_ms ** form.SOFT) ** (1 / form.SOFT)
    return terms.by_network(roof * terms.calls / share + terms.launches * launch_ms).numpy()


def intervals(predicted: pd.DataFrame) -> dict[str, float]:
    """Return the half width of each class of questions (``model.interval_keys``) that has enough labels.

    Each family of a source has one vote, so that no large source speaks for all.
    """
    votes = 1 / predicted.groupby(["source", "scope", "condition", "family"])["measured"].transform("size")
    error = np.log(predicted["measured"] / predicted["predicted"]).abs()
    keys = pd.DataFrame([interval_keys(*row) for row in predicted[_QUESTION].itertuples(index=False)], predicted.index)
    halves = {}
    for column in keys:
        for key, rows in keys.groupby(column):
            if len(rows) >= _LEAST or "," not in key:
                half = np.quantile(error[rows.index], COVER, weights=votes[rows.index], method="inverted_cdf")
                halves[key] = min(float(half), _WIDEST)
    return halves


def held_out_rows(predicted: pd.DataFrame, families: int = 5) -> pd.DataFrame:
    """Return ``left_out`` as rows ``held_out``; the range of a row is learned without a fifth of the families, and its own."""
    place = predicted["family"].map(dealt(predicted["family"], families))
    half = pd.Series(np.nan, predicted.index)
    for fold in range(families):
        others = intervals(predicted[place != fold])
        for index, *question in predicted.loc[place == fold, _QUESTION].itertuples():
            half[index] = next(others[key] for key in interval_keys(*question) if key in others)
    what = predicted["scope"].map({MEASURED: held_out.NETWORKS, NEW: held_out.NEW_CARDS})
    left_out_words = predicted["scope"].map({MEASURED: "families", NEW: "families and the card"})
    own = _frame(predicted, what, left_out_words, predicted["predicted"], half)
    once = predicted[predicted["scope"] == NEW]
    rule = _frame(once, held_out.RULE, "none: nothing of it is fitted", once["roof"], np.nan)
    return pd.concat([own, rule], ignore_index=True)


def _frame(predicted: pd.DataFrame, what, left_out_words, ms: pd.Series, half) -> pd.DataFrame:
    """Return rows ``held_out`` with these predictions."""
    return held_out.frame(
        device=predicted["device"], what=what, kind=predicted["kind"], mode=predicted["mode"],
        condition=predicted["condition"], group=predicted["family"], case=predicted["network"],
        batch_size=predicted.get("batch_size"), fold=predicted["fold"], measured=predicted["measured"], predicted=ms,
        low=ms * np.exp(-half), high=ms * np.exp(half), left_out=left_out_words, source=predicted["source"],
        licence=predicted["source"].str.partition(",")[0].map(LICENCES))


def ship(cases: Sequence[Case], final: Sequence[Case] = ()) -> pd.DataFrame:
    """Train and save the model, beside it its predictions of families and cards left out, and of the ``final`` families.

    Returns the former.
    """
    predicted = left_out(cases)
    fitted, halves = fitted_to(cases), intervals(predicted)
    weights = {level: row.to_numpy() for level, row in fitted.iterrows() if not level.startswith(_OF_SOURCES)}
    sources = {case.source: LICENCES[case.source.partition(",")[0]] for case in cases}
    path = model.GpuModel(weights, halves, sources).save(model.PATH)
    rows = [held_out_rows(predicted)]
    if final:
        unseen = pd.concat([_predicted(fitted, case, 0) for case in final], ignore_index=True)
        half = pd.Series([next(halves[key] for key in interval_keys(*question) if key in halves)
                          for question in unseen[_QUESTION].itertuples(index=False)])
        rows.append(_frame(unseen, held_out.FINAL, "final families", unseen["predicted"], half))
    held_out.save(pd.concat(rows, ignore_index=True), path)
    return predicted


def summary(predicted: pd.DataFrame) -> pd.DataFrame:
    """Return errors of ``left_out`` by scope, source and way, beside those of the simple rule."""
    lines = []
    source = predicted["source"].str.partition(",")[0]
    for key, part in predicted.groupby([predicted["scope"], source.rename("of"), "way", "bits"]):
        error, rule = (np.log(part[name] / part["measured"]) for name in ("predicted", "roof"))
        size = np.abs(np.expm1(error))
        lines.append({**dict(zip(("scope", "source", "way", "bits"), key, strict=True)), "n": len(part),
                      "mean error %": 100 * size.mean(), "median %": 100 * size.median(),
                      "off by 2x %": 100 * (error.abs() > np.log(2)).mean(), "factor": np.exp(error.abs().mean()),
                      "factor of the rule": np.exp(rule.abs().mean())})
    return pd.DataFrame(lines)
