"""The study of a fine-tune: a run is read as it was written, key numbers are made anew, a resume that errs is seen."""

import json
import shutil

import numpy as np
import pytest

from lib import paths, store
from lib.config.notebooks import FinetuneParams
from lib.finetune.config import TrainConfig
from lib.finetune.metrics import Evaluation
from lib.studies.finetune import study, tables
from lib.work.training import Trainer
from tests import cut_training, refused

REFERENCE = min(paths.REFERENCE.glob("*/finetune/*"))


@pytest.fixture
def folder(home):
    """Give a copy of the reference run, as one that was trained here."""
    return shutil.copytree(REFERENCE, paths.TRAINING / "pathmnist/one")


def test_a_run_is_shown_without_training_and_holds_together(folder):
    """What it reports is what its steps, rows and counts give; nothing of it names a folder of some machine."""
    results = study.study(FinetuneParams(run="pathmnist/one"))
    summary = results.summary
    assert results.note.startswith("Run pathmnist/one, trained here before.")
    assert results.final.split == "test" and len(results.labels) == 9
    assert tables.recomputed(results) == pytest.approx({
        "batches": summary["batches"], "epochs": summary["epochs"], "best val_acc@1": summary["best_value"],
        "last training loss": summary["history"][-1]["train_loss"], "test acc@1": summary["test"]["test_acc@1"]}, abs=1e-6)
    assert results.config.content() == {"devices": 1, **store.read_json(REFERENCE / "train_config.json")}  # a later field
    assert not any("/tmp" in path.read_text() or "/home" in path.read_text() for path in REFERENCE.glob("*"))


def test_key_numbers_follow_the_rows_and_not_the_summary(folder):
    results = study.read(folder, "")
    before = tables.recomputed(results)
    results.summary.update(best_value=2.0, batches=1, epochs=7)
    results.evaluations["test"].confusion[:] = np.eye(9)
    assert tables.recomputed(results) == before | {"test acc@1": 1.0}


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
        study.read(folder, "")


def test_a_run_without_profile_or_test_is_shown(folder):
    for name in ("profile.csv", "profile.meta.json", "evaluation_test.json"):
        (folder / name).unlink()
    summary = store.read_json(folder / "summary.json") | {"test": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    results = study.read(folder, "")
    metrics = tables.metrics(results)
    assert results.final.split == "val" and metrics["test"].isna().all()
    assert tables.worth(metrics)["split"] == "val" and 0.7 <= tables.worth(metrics)["reached"]["acc@1"] < 0.8
    assert np.isnan(tables.recomputed(results)["last training loss"])


def test_what_is_not_there_is_named(home):
    with refused(r"no config 'nothing' in params/training.yaml; there are: cnn"):
        study.study(FinetuneParams(config="nothing"))
    with refused(r"no run 'nothing' of .*; there are: cnn"):
        study.study(FinetuneParams(source="replay", run="nothing"))
    for run in ("a/../b", "/etc"):
        with pytest.raises(ValueError, match="run"):
            FinetuneParams(run=run)


def test_confusions_are_the_most_frequent_first():
    def of(matrix, labels):
        evaluation = Evaluation("val", {}, 7, np.array(matrix), (np.zeros(0), np.zeros(0)))
        return tables.confusions(evaluation, labels).to_numpy().tolist()

    assert of([[2, 3], [1, 1]], ["a", "b"]) == [["a", "b", 3, 60.0], ["b", "a", 1, 50.0]]
    assert of([[[1, 2], [0, 1]]], ["x"]) == [["x", "added", 2, pytest.approx(200 / 3)]]


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "without the optimizer"])
@pytest.mark.slow
def test_a_resume_is_compared_bit_for_bit(home, tmp_path, monkeypatch, broken):
    """Also that the comparison can fail: a resume that leaves out the optimizer's state is seen."""
    if broken:
        whole = Trainer.load_state
        monkeypatch.setattr(Trainer, "load_state", lambda self, state: whole(self, {
            **state, "optimizer": self.optimizer.state_dict()}))
    root = cut_training.pictures(tmp_path / "pictures", {"train": 40, "val": 4})
    compared = study.resumed(TrainConfig(
        root=str(root), model_flavour="simple_cnn", loss_name="cross_entropy", load_pretrained=False, num_workers=0,
        image_size=12, autocast_dtype="fp32", threads=1))
    assert (compared["compared"] > 0).all()
    assert (compared["different"].sum() > 0) == broken
