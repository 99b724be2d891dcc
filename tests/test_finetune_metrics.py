"""What an evaluation measures: known answers of scikit-learn, classes that are absent, and batches of any number."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from lib.finetune.metrics import Evaluation, SplitMetrics
from tests import refused


def split(classes=4, samples=60, seed=0, multi_label=False, absent=()):
    """Return probabilities and targets, float64 and int64 arrays; classes in ``absent`` do not occur."""
    draw = np.random.default_rng(seed)
    if multi_label:
        truth = (draw.random((samples, classes)) < 0.3).astype(np.int64)
        truth[:, list(absent)] = 0
        return (0.3 * truth + 0.7 * draw.random((samples, classes))).astype(np.float32), truth
    targets = draw.choice([one for one in range(classes) if one not in absent], samples)
    logits = draw.normal(size=(samples, classes)) + 1.2 * np.eye(classes)[targets]
    return torch.tensor(logits, dtype=torch.float32).softmax(1).numpy(), targets


def measured(scores, targets, eval_topk=(), batches=3, losses=None):
    """Evaluate a split batch by batch."""
    losses = np.ones(batches) if losses is None else losses
    metrics = SplitMetrics("val", scores.shape[1], targets.ndim == 2, eval_topk)
    for batch, loss in zip(np.array_split(np.arange(len(scores)), batches), losses, strict=True):
        if len(batch):
            metrics.update(torch.full((len(batch),), loss), torch.tensor(scores[batch]), torch.tensor(targets[batch]))
    return metrics.compute()


@pytest.mark.parametrize("absent", [(), (1, 3)])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_as_scikit_learn_has_it_over_the_classes_that_occur(seed, multi_label, absent):
    """A class that a split does not hold neither counts as 0 nor as 1, and nobody is warned."""
    scores, targets = split(seed=seed, multi_label=multi_label, absent=absent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = measured(scores, targets, (2, 3, 4, 5))
    highest = scores.argmax(1)
    chosen, truth = (scores > 0.5, targets) if multi_label else (np.eye(4)[highest], np.eye(4)[targets])
    there = [index for index in range(4) if index not in absent]

    def macro(score, values):
        return np.mean([score(truth[:, index], values[:, index]) for index in there])

    expected = {
        "loss": 1.0, "f1_macro": macro(sk.f1_score, chosen), "map": macro(sk.average_precision_score, scores),
        "auroc_macro": macro(sk.roc_auc_score, scores), "auroc_micro": sk.roc_auc_score(truth, scores, average="micro"),
        "recall_micro": sk.recall_score(truth, chosen, average="micro"), "recall_macro": macro(sk.recall_score, chosen)}
    if multi_label:
        expected |= {"acc@1": (chosen == truth).mean(), "acc_macro": macro(sk.accuracy_score, chosen)}
        confusion = sk.multilabel_confusion_matrix(targets, chosen)
    else:
        expected |= {"acc@1": sk.accuracy_score(targets, highest), "acc_macro": macro(sk.recall_score, chosen),
                     "cohenkappa": sk.cohen_kappa_score(targets, highest)}
        expected |= {f"acc@{k}": sk.top_k_accuracy_score(targets, scores, k=k, labels=range(4)) for k in (2, 3)}
        confusion = sk.confusion_matrix(targets, highest, labels=range(4))
    assert got.values == pytest.approx({f"val_{name}": value for name, value in expected.items()}, abs=1e-6)
    assert (got.confusion == confusion).all()
    assert np.allclose(got.roc, sk.roc_curve(truth.ravel(), scores.ravel(), drop_intermediate=False)[:2])


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 7), st.booleans())
def test_how_a_split_is_cut_into_batches_changes_nothing_as_samples_weigh_alike(seed, samples, batches, multi_label):
    scores, targets = split(3, samples, seed, multi_label)
    sizes, losses = [len(part) for part in np.array_split(np.arange(samples), batches)], np.arange(float(batches))
    whole, cut = measured(scores, targets, (2,), 1), measured(scores, targets, (2,), batches, losses)
    assert cut.values == pytest.approx({**whole.values, "val_loss": np.average(losses, weights=sizes)}, nan_ok=True)
    assert (cut.confusion == whole.confusion).all()
    assert (whole.confusion.sum() == samples * (3 if multi_label else 1))
    assert all(0 <= value <= 1 for name, value in whole.values.items() if name != "val_cohenkappa" and not math.isnan(value))


def test_scores_that_are_no_numbers_leave_the_loss():
    scores, targets = split()
    scores[7, 1] = math.nan
    got = measured(scores, targets).values
    assert got.pop("val_loss") == 1 and all(map(math.isnan, got.values()))
    assert math.isnan(measured(scores[:0], targets[:0], batches=1).values["val_loss"])


def test_an_evaluation_is_written_and_read_back(tmp_path):
    before = measured(*split(2, 1), (2,), batches=1)
    path = before.write(tmp_path)
    after = Evaluation.read(path)
    assert path.name == "evaluation_val.json" and math.isnan(after.values["val_auroc_macro"])
    assert after.values == pytest.approx(before.values, nan_ok=True) and after.samples == 1 and after.split == "val"
    assert (after.confusion == before.confusion).all() and np.allclose(after.roc, before.roc, atol=1e-6)
    path.write_text('{"split": "val", "values": {"a": []}, "samples": 1, "roc": [[], []], "confusion": []}')
    with refused("is no evaluation"):
        Evaluation.read(path)
