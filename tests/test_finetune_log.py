"""What a run reports: the same in TensorBoard and in history.csv, no step twice when it is resumed, few looks at the device."""

import math
import threading

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import locks, store
from lib.errors import InputError
from lib.finetune import figures, tensorboard
from lib.finetune.metrics import Evaluation, Evaluator
from lib.finetune.tensorboard import Log
from tests.test_finetune_metrics import split


def steps(log, first, last, epoch=0, loss=lambda step: 1 / (1 + step)):
    for step in range(first, last):
        log.step(step, epoch, torch.tensor(loss(step)), torch.tensor(step % 5), 4, 1e-3)


def events(folder):
    accumulator = EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def evaluation(classes=3, multi_label=False, name="val"):
    scores, targets = split(classes, multi_label=multi_label)
    evaluator = Evaluator(name, classes, multi_label)
    evaluator.update(torch.tensor(scores), torch.tensor(targets), torch.tensor(0.5))
    return evaluator.compute()


def test_a_resumed_run_goes_on_without_a_step_twice(tmp_path, capsys):
    """Killed after step 7, with a checkpoint after step 5: steps from there on, and the epoch's values, are written once."""
    first = Log(tmp_path)
    steps(first, 0, 5)
    first.scalars({"val/acc@1": 0.5}, 4, 0)
    steps(first, 5, 8, 1)
    first.scalars({"val/acc@1": 0.9}, 7, 1)
    first.close()
    second = Log(tmp_path, 5)
    steps(second, 5, 10, 1)
    second.scalars({"val/acc@1": 0.6}, 9, 1)
    second.close()
    history, seen = store.read(tmp_path / "history.csv", "history"), events(tmp_path / "tensorboard")
    for name in ("train/step_loss", "train/step_acc@1", "train/lr"):
        rows = history[history["name"] == name]
        assert list(rows["step"]) == list(range(10)) == [event.step for event in seen.Scalars(name)]
        assert np.allclose(rows["value"], [event.value for event in seen.Scalars(name)])
    assert list(history[history["name"] == "train/step_loss"]["value"]) == pytest.approx([1 / (1 + step) for step in range(10)])
    assert list(history[history["name"] == "train/step_acc@1"]["value"]) == [step % 5 / 4 for step in range(10)]
    assert [(event.step, round(event.value, 3)) for event in seen.Scalars("val/acc@1")] == [(4, 0.5), (9, 0.6)]
    assert capsys.readouterr().out.splitlines() == [f"tensorboard --logdir {tmp_path / 'tensorboard'}"] * 2


def test_an_epoch_that_is_reported_once_more_is_there_once(tmp_path):
    """Killed after its values were written, with a checkpoint of its last batch from before: they are computed again."""
    for first in (0, 5):
        log = Log(tmp_path, first)
        steps(log, first, 5)
        log.scalars({"train/epoch_loss": 0.5}, 4, 0)
        log.evaluation(evaluation(), 4, 0, ["a", "b", "c"])
        log.close()
    history, seen = store.read(tmp_path / "history.csv", "history"), events(tmp_path / "tensorboard")
    assert not history.duplicated(["name", "step"]).any()
    assert len(seen.Scalars("val/loss")) == len(seen.Scalars("train/epoch_loss")) == len(seen.Images("val/roc_micro")) == 1
    assert len(seen.Tensors("val/confusion_matrix/text_summary")) == 1


def test_a_torn_last_line_is_no_hindrance(tmp_path):
    first = Log(tmp_path)
    steps(first, 0, 3)
    first.close()
    path = tmp_path / "history.csv"
    path.write_bytes(path.read_bytes()[:-7])
    second = Log(tmp_path, 3)
    steps(second, 3, 4)
    second.close()
    history = store.read(path, "history")
    assert list(history[history["name"] == "train/step_loss"]["step"]) == [0, 1, 2, 3]


def test_a_second_process_at_the_same_run_is_refused(tmp_path):
    log = Log(tmp_path)
    steps(log, 0, 3)
    with pytest.raises(locks.HeldError, match="is being written by another process"):
        Log(tmp_path, 1)
    log.close()
    assert len(store.read(tmp_path / "history.csv", "history").query("name == 'train/lr'")) == 3


def test_the_device_is_looked_at_twice_a_second(tmp_path, monkeypatch):
    now, looks, real = [0.0], [], torch.stack
    monkeypatch.setattr(tensorboard.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch, "stack", lambda values: looks.append(len(values)) or real(values))
    log = Log(tmp_path)
    for step in range(100):
        now[0] += 0.0625
        steps(log, step, step + 1)
    assert looks == [16] * 12  # two values of each of 8 steps
    assert log.latest["step"] == 95
    assert log.latest["images_per_sec"] == pytest.approx(4 / 0.0625)
    log.close()
    rates = store.read(tmp_path / "history.csv", "history").query("name == 'throughput/images_per_sec'")["value"]
    assert list(rates) == pytest.approx([64.0] * len(rates))


def test_time_between_epochs_is_not_that_of_steps(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(tensorboard.time, "perf_counter", lambda: now[0])
    log = Log(tmp_path)
    for epoch in range(2):
        for step in range(3):
            now[0] += 0.125
            steps(log, 3 * epoch + step, 3 * epoch + step + 1, epoch)
        log.flush()
        now[0] += 1000  # an evaluation
    log.close()
    rates = store.read(tmp_path / "history.csv", "history").query("name == 'throughput/images_per_sec'")["value"]
    assert list(rates) == [32.0, 32.0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_run_and_says_where(tmp_path, wrong):
    log = Log(tmp_path)
    steps(log, 0, 5, loss=lambda step: wrong if step == 3 else 1.0)
    with pytest.raises(InputError, match=rf"the loss is {wrong} at step 3 \(epoch 0, lr 0.001\): training stops"):
        log.flush()
    log.close()
    rows = store.read(tmp_path / "history.csv", "history").query("name == 'train/step_loss'")["value"]
    assert len(rows) == 5 and not np.isfinite(rows[rows.index[3]])


@pytest.mark.parametrize("multi_label", [False, True])
def test_an_evaluation_has_scalars_figures_and_a_table(tmp_path, multi_label):
    log, names = Log(tmp_path), ["a|b", "$\\frac$", "<script>" * 20]
    log.evaluation(evaluation(3, multi_label), 7, 1, names)
    log.evaluation(evaluation(3, multi_label, "test"), 7, 1, names)
    log.close()
    seen, history = events(tmp_path / "tensorboard"), store.read(tmp_path / "history.csv", "history")
    values = evaluation(3, multi_label).values
    assert set(seen.Tags()["scalars"]) == {f"{one}/{name[4:]}" for name in values for one in ("val", "test")}
    assert dict(zip(history["name"], history["value"], strict=True))["val/acc@1"] == pytest.approx(values["val_acc@1"])
    assert set(history["step"]) == {7}
    for name in ("confusion_matrix", "roc_micro"):
        picture = (tmp_path / "figures" / f"val_{name}.png").read_bytes()
        assert seen.Images(f"val/{name}")[0].encoded_image_string == picture and picture.startswith(b"\x89PNG")
    text = seen.Tensors("val/confusion_matrix/text_summary")[0].tensor_proto.string_val[0].decode()
    assert len(text.splitlines()) == 5 and "a\\|b" in text


def test_the_table_counts_what_the_matrix_does():
    one = Evaluation("val", {}, 3, np.array([[2, 0], [1, 0]]), (np.zeros(0), np.zeros(0)))
    assert tensorboard.table(one, ["cat", "dog"]) == "| truth | cat | dog |\n|---|---|---|\n| cat | 2 | 0 |\n| dog | 1 | 0 |"
    one = Evaluation("val", {}, 1, np.array([[[4, 3], [2, 1]], [[5, 6], [7, 8]]]), (np.zeros(0), np.zeros(0)))
    assert tensorboard.table(one, ["x", "y"]).splitlines()[2:] == ["| x | 4 | 3 | 2 | 1 |", "| y | 5 | 6 | 7 | 8 |"]
    many = Evaluation("val", {}, 1, np.zeros((1000, 1000), int), (np.zeros(0), np.zeros(0)))
    assert tensorboard.table(many, [str(one) for one in range(1000)]) == "1000 classes: see the figure."
    assert max(figures.confusion(many, [str(one) for one in range(1000)]).get_size_inches()) < 20


def test_a_full_disk_is_one_line_and_keeps_what_was_written(tmp_path, monkeypatch):
    log = Log(tmp_path)
    steps(log, 0, 3)
    log.flush()
    before = (tmp_path / "history.csv").read_bytes()

    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)  # TensorBoard's own thread ends by it

    def full(data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log._writer.file_writer.event_writer._async_writer._writer._writer, "write", full)
    with pytest.raises(InputError, match=r"tensorboard: cannot be written \(No space left on device\).*free some space"):
        for step in range(3, 50):
            log.scalars({"a": 1.0}, step, 0)
            log.flush()
    assert (tmp_path / "history.csv").read_bytes().startswith(before)
