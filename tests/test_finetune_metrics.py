"""What an evaluation measures: known answers of scikit-learn, classes that are absent, and several processes."""

import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from lib.errors import InputError
from lib.finetune import metrics
from lib.finetune.metrics import Evaluation, Evaluator, check_monitor


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
    evaluator = Evaluator("val", scores.shape[1], targets.ndim == 2, eval_topk)
    losses = np.ones(batches) if losses is None else losses
    for part, loss in zip(np.array_split(np.arange(len(scores)), batches), losses, strict=True):
        evaluator.update(torch.tensor(scores[part]), torch.tensor(targets[part]), torch.tensor(loss))
    return evaluator.compute()


@pytest.mark.parametrize("seed", range(3))
def test_of_classes_as_scikit_learn_has_it(seed):
    scores, targets = split(seed=seed)
    given_, truth, got = scores.argmax(1), np.eye(4)[targets], measured(scores, targets, (2, 3, 4, 5))
    assert got.values == pytest.approx({
        "val_loss": 1.0, "val_acc@1": sk.accuracy_score(targets, given_),
        "val_acc_macro": sk.balanced_accuracy_score(targets, given_),
        "val_acc@2": sk.top_k_accuracy_score(targets, scores, k=2), "val_acc@3": sk.top_k_accuracy_score(targets, scores, k=3),
        "val_f1_macro": sk.f1_score(targets, given_, average="macro"),
        "val_map": sk.average_precision_score(truth, scores, average="macro"),
        "val_auroc_macro": sk.roc_auc_score(truth, scores, average="macro"),
        "val_auroc_micro": sk.roc_auc_score(truth, scores, average="micro"),
        "val_cohenkappa": sk.cohen_kappa_score(targets, given_),
        "val_recall_micro": sk.recall_score(targets, given_, average="micro"),
        "val_recall_macro": sk.recall_score(targets, given_, average="macro")}, abs=1e-6)
    assert (got.confusion == sk.confusion_matrix(targets, given_)).all()
    fpr, tpr = got.roc
    expected = sk.roc_curve(truth.ravel(), scores.ravel(), drop_intermediate=False)
    assert np.allclose(fpr, expected[0]) and np.allclose(tpr, expected[1])


def test_of_labels_as_scikit_learn_has_it():
    scores, truth = split(5, multi_label=True)
    given_, got = scores > 0.5, measured(scores, truth, (3,))
    assert got.values == pytest.approx({
        "val_loss": 1.0, "val_acc@1": (given_ == truth).mean(), "val_acc_macro": (given_ == truth).mean(),
        "val_f1_macro": sk.f1_score(truth, given_, average="macro"),
        "val_map": sk.average_precision_score(truth, scores, average="macro"),
        "val_auroc_macro": sk.roc_auc_score(truth, scores, average="macro"),
        "val_auroc_micro": sk.roc_auc_score(truth, scores, average="micro"),
        "val_recall_micro": sk.recall_score(truth, given_, average="micro"),
        "val_recall_macro": sk.recall_score(truth, given_, average="macro")}, abs=1e-6)
    assert (got.confusion == sk.multilabel_confusion_matrix(truth, given_)).all()


@pytest.mark.parametrize("multi_label", [False, True])
def test_classes_that_a_split_does_not_hold_are_left_out_in_silence(multi_label):
    """Means are over the classes that occur; a class that never does neither counts as 0 nor as 1, and nobody is warned."""
    scores, targets = split(4, multi_label=multi_label, absent=(1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = measured(scores, targets, (2, 3)).values
    truth = targets if multi_label else np.eye(4)[targets]
    given_ = scores > 0.5 if multi_label else np.eye(4)[scores.argmax(1)]
    kept = [0, 2]
    assert got["val_auroc_macro"] == pytest.approx(sk.roc_auc_score(truth[:, kept], scores[:, kept], average="macro"), abs=1e-6)
    assert got["val_map"] == pytest.approx(sk.average_precision_score(truth[:, kept], scores[:, kept]), abs=1e-6)
    for name, one in (("recall", sk.recall_score), ("f1", sk.f1_score)):
        assert got[f"val_{name}_macro"] == pytest.approx(np.mean([one(truth[:, c], given_[:, c]) for c in kept]), abs=1e-6)


def test_of_one_class_alone_what_compares_classes_is_undefined():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = measured(split(3)[0], np.ones(60, np.int64)).values
    assert math.isnan(got["val_auroc_macro"])
    assert 0 <= got["val_acc@1"] <= 1
    assert got["val_acc@1"] == pytest.approx(got["val_recall_macro"])


def test_loss_is_weighted_by_samples():
    scores, targets = split(samples=5)
    assert measured(scores, targets, batches=2, losses=[1.0, 6.0]).values["val_loss"] == pytest.approx((3 * 1 + 2 * 6) / 5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 7), st.booleans())
def test_how_a_split_is_cut_into_batches_changes_nothing(seed, samples, batches, multi_label):
    scores, targets = split(3, samples, seed, multi_label)
    whole, cut = measured(scores, targets, (2,), 1), measured(scores, targets, (2,), batches)
    assert cut.values == pytest.approx(whole.values, nan_ok=True)
    assert (cut.confusion == whole.confusion).all()
    assert (whole.confusion.sum() == samples * (3 if multi_label else 1))
    assert all(0 <= value <= 1 for name, value in whole.values.items()
               if name not in ("val_loss", "val_cohenkappa") and not math.isnan(value))


def test_scores_that_are_no_numbers_leave_the_loss():
    scores, targets = split()
    scores[7, 1] = float("nan")
    got = measured(scores, targets, losses=[1.0, float("nan"), 1.0]).values
    assert all(math.isnan(value) for value in got.values())
    assert math.isnan(measured(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), batches=1).values["val_loss"])


def test_an_evaluation_is_written_and_read_back(tmp_path):
    before = measured(*split(3), (2,))
    path = before.write(tmp_path)
    after = Evaluation.read(path)
    assert path.name == "evaluation_val.json"
    assert (after.values, after.samples, after.split) == (before.values, before.samples, "val")
    assert (after.confusion == before.confusion).all() and np.allclose(after.roc, before.roc, atol=1e-6)
    nothing = measured(*split(2, 1), batches=1)
    assert math.isnan(Evaluation.read(nothing.write(tmp_path)).values["val_auroc_macro"])
    for content in ("[]", "{}", '{"split": "val", "values": {"a": []}, "samples": 1, "roc": [[], []], "confusion": []}'):
        path.write_text(content)
        with pytest.raises(InputError, match="is no evaluation"):
            Evaluation.read(path)


def test_a_curve_of_many_points_is_thinned_and_keeps_its_ends():
    fpr, tpr = measured(*split(4, 4000)).roc
    assert len(fpr) <= 501 and (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert sk.auc(fpr, tpr) == pytest.approx(measured(*split(4, 4000)).values["val_auroc_micro"], abs=1e-3)


def test_what_checkpoints_are_chosen_by_is_measured():
    check_monitor("val_acc@1", (), 4, False)
    check_monitor("val_loss", (), 4, False)
    check_monitor("val_acc@3", (3, 5), 4, False)
    check_monitor("val_f1_macro", (), 14, True)
    with pytest.raises(InputError, match=r"'val_acc@5' is not measured on these classes; there are: .*val_acc@3, "):
        check_monitor("val_acc@5", (3, 5), 4, False)
    with pytest.raises(InputError, match="val_cohenkappa"):
        check_monitor("val_cohenkappa", (), 14, True)
    with pytest.raises(InputError, match="'train_loss' is not measured on these classes; there are: val_loss, val_acc@1"):
        check_monitor("train_loss", (), 4, False)


def test_one_function_adds_a_metric(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))

    @metrics.metric("always", multi_label=False)
    def always(scored):
        """Return 1."""
        return torch.ones(())

    assert measured(*split()).values["val_always"] == 1
    check_monitor("val_always", (), 4, False)
    with pytest.raises(InputError, match="val_always"):
        check_monitor("val_always", (), 4, True)


GATHERING = """
import json, sys
import torch
from tests.test_finetune_metrics import split
from lib.finetune.metrics import Evaluator
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
for samples in (60, 41):
    for multi_label in (False, True):
        scores, targets = split(multi_label=multi_label)
        one = Evaluator("val", 4, multi_label, (2,))
        for sample in range(41) if rank == 0 else range(41, samples):
            loss = torch.tensor(float(sample))
            one.update(torch.tensor(scores[sample:sample + 1]), torch.tensor(targets[sample:sample + 1]), loss)
        got = one.compute()
        print(json.dumps([samples, multi_label, got.values, got.samples, got.confusion.tolist()]))
"""


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path):
    """Also where their parts are of two sizes, and where one of them has no samples at all."""
    commands = [[sys.executable, "-c", GATHERING, str(rank), f"file://{tmp_path}/rendezvous"] for rank in range(2)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for output in [process.communicate(timeout=120)[0] for process in processes]:
        cases = [json.loads(line) for line in output.splitlines()]
        assert len(cases) == 4
        for samples, multi_label, values, count, confusion in cases:
            scores, targets = (part[:samples] for part in split(multi_label=multi_label))
            alone = measured(scores, targets, (2,), samples, np.arange(float(samples)))
            assert (values, count, confusion) == (pytest.approx(alone.values), samples, alone.confusion.tolist())
