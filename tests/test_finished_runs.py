"""A finished fine-tune is read as it was written, and predicted on every device; what is missing or damaged is one line."""

import json
import shutil

import pytest

from lib import paths, store
from lib.config.notebooks import FinetuneParams
from lib.finetune import finished
from tests import refused

REFERENCE = min(paths.REFERENCE.glob("*/finetune/*"))


@pytest.fixture
def folder(home):
    """Give a copy of the reference run, as one that was trained here."""
    return shutil.copytree(REFERENCE, paths.TRAINING / "pathmnist/one")


def test_a_run_is_read_and_holds_together(folder):
    """What it reports is what its steps and counts give; nothing of it names a folder of some machine."""
    run = finished.read(folder, "Trained here.")
    summary, steps = run.summary, run.history[run.history["name"] == "train/step_loss"]
    assert run.note.startswith("Trained here.") and run.final.split == "test" and len(steps) == summary["batches"]
    right = run.final.confusion.diagonal().sum() / run.final.confusion.sum()
    assert right == pytest.approx(summary["test"]["test_acc@1"], abs=1e-6)
    last, sizes = steps[steps["epoch"] == 2].set_index("step")["value"], run.rows.set_index("global_step")["batch_size"]
    sizes = sizes[run.rows["task_type"].to_numpy() == "train"].reindex(last.index)
    assert (last * sizes).sum() / sizes.sum() == pytest.approx(summary["history"][-1]["train_loss"], abs=1e-6)
    assert run.config.content() == {"devices": 1, "mlflow": True, **store.read_json(REFERENCE / "train_config.json")}
    assert not any("/tmp" in path.read_text() or "/home" in path.read_text() for path in REFERENCE.glob("*"))


@pytest.mark.parametrize("name, content, words", [
    ("summary.json", "{}", r"summary.json is no summary of a run: it lacks run, dataset, monitor"),
    ("summary.json", None, r"holds no run that has ended; in .* there are: none"),
    ("evaluation_val.json", None, r"evaluation_val.json is missing"),
    ("history.csv", "a,b\n1,2\n", r"history.csv"),
    ("train_config.json", '{"root": 3}', r"train_config.json"),
])
def test_a_damaged_run_is_one_line(folder, name, content, words):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with refused(words):
        finished.read(folder)


def test_a_run_without_profile_or_test_is_read(folder):
    for name in ("profile.csv", "profile.meta.json", "evaluation_test.json"):
        (folder / name).unlink()
    summary = store.read_json(folder / "summary.json") | {"test": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    run = finished.read(folder)
    assert run.final.split == "val" and run.rows.empty and "warmup" in run.rows


def test_what_is_not_there_is_named(home):
    with refused(r"no run 'nothing' of .*; there are: cnn"):
        finished.reference("nothing")
    for run in ("a/../b", "/etc"):
        with pytest.raises(ValueError, match="run"):
            FinetuneParams(run=run)


@pytest.mark.slow
def test_a_step_is_predicted_on_every_device_and_a_larger_batch_takes_longer():
    run = finished.reference()
    steps = finished.predicted_steps(run, shipped=True)
    larger = finished.predicted_steps(run, run.config.model_copy(update={"batch_size": 256}), shipped=True)
    assert steps["device"].iloc[0] == "cpu" and len(steps) > 5
    assert (steps["low_ms"] < steps["predicted_ms"]).all() and (steps["predicted_ms"] < steps["high_ms"]).all()
    assert (larger["predicted_ms"] > steps["predicted_ms"]).all()
