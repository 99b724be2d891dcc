"""What a run reports: the same in TensorBoard and in history.csv, and no step twice when it is resumed."""

import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import locks, store
from lib.finetune.metrics import Evaluation
from lib.finetune.reports import Reports, logged
from tests.test_finetune_metrics import measured, split


def opened(folder, step=0):
    return Reports(folder, folder / "tensorboard", step)


def steps(log, first, last, epoch=0):
    for step in range(first, last):
        log.scalars({"train/step_loss": 1 / (1 + step), "train/lr": 1e-3}, step, epoch)


def events(folder):
    accumulator = EventAccumulator(str(folder / "tensorboard"), {"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def history(folder, name):
    """Return the (step, value) pairs of a name, in order."""
    rows = store.read(folder / "history.csv", "history")
    return list(rows.loc[rows["name"] == name, ["step", "value"]].itertuples(index=False, name=None))


def test_a_resumed_run_goes_on_without_a_step_twice(tmp_path, capsys):
    """Killed in a line of step 7, with a checkpoint after step 5: what follows is there once."""
    first = opened(tmp_path)
    steps(first, 0, 5)
    first.scalars({"val/acc@1": 0.5}, 4, 0)
    steps(first, 5, 8, 1)
    first.scalars({"val/acc@1": 0.9}, 7, 1, 123.0)
    assert store.read(tmp_path / "history.csv", "history")["wall_time_s"].iloc[-1] == 123.0
    with pytest.raises(locks.HeldError, match="is being written by another process"):
        opened(tmp_path, 1)
    first.close()
    path = tmp_path / "history.csv"
    path.write_bytes(path.read_bytes()[:-7])
    second = opened(tmp_path, 5)
    steps(second, 5, 10, 1)
    second.scalars({"val/acc@1": 0.6}, 9, 1)
    second.close()
    expected = {"train/step_loss": [(step, 1 / (1 + step)) for step in range(10)],
                "train/lr": [(step, 1e-3) for step in range(10)], "val/acc@1": [(4, 0.5), (9, 0.6)]}
    seen = events(tmp_path)
    for name, pairs in expected.items():
        assert np.array(history(tmp_path, name)) == pytest.approx(np.array(pairs))
        assert np.array([(event.step, event.value) for event in seen.Scalars(name)]) == pytest.approx(np.array(pairs))
    assert capsys.readouterr().out.splitlines() == [f"tensorboard --logdir {tmp_path / 'tensorboard'}"] * 2


def test_what_is_printed_and_the_error_that_ends_it_are_in_the_log(tmp_path, capsys):
    for number in (1, 2):
        with pytest.raises(ValueError, match="wrong"), logged(tmp_path):
            print("epoch", number)
            assert (tmp_path / "log.txt").read_text().endswith(f"epoch {number}\n"), "each line at once"
            print("a warning", file=sys.stderr)
            raise ValueError("wrong")
    assert (tmp_path / "log.txt").read_text() == "".join(f"epoch {n}\na warning\nValueError: wrong\n" for n in (1, 2))
    assert capsys.readouterr() == ("epoch 1\nepoch 2\n", "a warning\na warning\n")


@pytest.mark.parametrize("multi_label", [False, True])
def test_an_evaluation_has_scalars_figures_and_a_table(tmp_path, multi_label):
    evaluation = measured(*split(3, multi_label=multi_label))
    log = opened(tmp_path)
    log.evaluation(evaluation, 7, 1, ["a|b", "$\\frac$", "<script>" * 20])
    log.close()
    seen = events(tmp_path)
    assert set(seen.Tags()["scalars"]) == {f"val/{name[4:]}" for name in evaluation.values}
    assert history(tmp_path, "val/acc@1") == [(7, pytest.approx(evaluation.values["val_acc@1"]))]
    assert Evaluation.read(tmp_path / "evaluation_val.json").samples == evaluation.samples
    for name in ("confusion_matrix", "roc_micro"):
        picture = (tmp_path / f"figures/val_{name}.png").read_bytes()
        assert len(seen.Images(f"val/{name}")) == 1 and picture.startswith(b"\x89PNG")
    text, = seen.Tensors("val/confusion_matrix/text_summary")
    assert len(text.tensor_proto.string_val[0].decode().splitlines()) == 5
