"""The study of a fine-tune: a run is read as it was written, key numbers are made anew, a resume that errs is seen."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from lib import paths, store
from lib.config.notebooks import FinetuneParams
from lib.errors import InputError
from lib.finetune.config import TrainConfig
from lib.finetune.metrics import Evaluation
from lib.studies.finetune import findings, study, tables

REFERENCE = next(iter(sorted(paths.REFERENCE.glob("*/finetune/*"))))


@pytest.fixture
def folder(home):
    """Give a copy of the reference run, as one that was trained here."""
    return shutil.copytree(REFERENCE, paths.TRAINING / "pathmnist" / "one")


def test_a_run_of_this_machine_is_shown_without_training(folder):
    results = study.study(FinetuneParams(run="pathmnist/one"))
    assert results.note.startswith("Run pathmnist/one, trained here before.")
    assert results.summary["batches"] == len(results.history.query("name == 'train/step_loss'"))
    assert results.final.split == "test" and len(results.labels) == 9


def test_the_reference_run_holds_together():
    """What it reports is what its steps, rows and counts give; nothing of it names a folder of some machine."""
    results = study.study(FinetuneParams(source="replay"))
    anew, summary = tables.recomputed(results), results.summary
    assert anew == pytest.approx({
        "batches": summary["batches"], "epochs": summary["epochs"], "best val_acc@1": summary["best_value"],
        "last training loss": summary["history"][-1]["train_loss"], "test acc@1": summary["test"]["test_acc@1"]}, abs=1e-6)
    assert results.config.content() == store.read_json(REFERENCE / "train_config.json")
    assert not any("/tmp" in path.read_text() or "/home" in path.read_text() for path in REFERENCE.glob("*"))


def test_parameters_change_a_config_only_where_they_are_given(monkeypatch):
    own = TrainConfig(root="synthetic:pathmnist", model_flavour="simple_cnn", loss_name="bce", device="cpu", threads=2)
    monkeypatch.setattr(study, "load_configs", lambda: {"own": own})
    assert study.named(FinetuneParams(config="own")) == own
    assert study.named(FinetuneParams(config="own", epochs=1, threads=1, device="cuda:1")) == own.model_copy(
        update={"epochs": 1, "threads": 1, "device": "cuda:1"})


def test_key_numbers_follow_the_rows_and_not_the_summary(folder):
    results = study.read(folder, "")
    results.summary.update(best_value=2.0, batches=1, epochs=7)
    results.evaluations["test"].confusion[:] = np.eye(9)
    assert tables.recomputed(results) | {"last training loss": 0} == pytest.approx(
        {"batches": 45, "epochs": 3, "best val_acc@1": results.summary["history"][-1]["val_acc@1"], "last training loss": 0,
         "test acc@1": 1.0})


@pytest.mark.parametrize(("name", "content", "words"), [
    ("summary.json", "{}", r"summary.json is no summary of a run: it lacks run, dataset, monitor"),
    ("summary.json", "[1]", r"summary.json is no summary of a run"),
    ("summary.json", "{", r"summary.json is not readable JSON"),
    ("evaluation_val.json", "{}", r"evaluation_val.json is no evaluation"),
    ("history.csv", "a,b\n1,2\n", r"history.csv"),
    ("train_config.json", '{"root": 3}', r"train_config.json"),
    ("summary.json", None, r"holds no run that has ended; in .* there are: none"),
    ("evaluation_val.json", None, r"evaluation_val.json is missing"),
    ("history.csv", None, r"history.csv"),
])
def test_a_damaged_run_is_one_line(folder, name, content, words):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=words) as error:
        study.read(folder, "")
    assert "\n" not in str(error.value)


def test_a_run_without_profile_or_test_is_shown(folder):
    for name in ("profile.csv", "profile.meta.json", "evaluation_test.json"):
        (folder / name).unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"test": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    results = study.read(folder, "")
    metrics = tables.metrics(results)
    assert results.final.split == "val" and metrics["test"].isna().all()
    assert findings.metric_words(metrics).startswith("On val: **accuracy 0.7")
    assert np.isnan(tables.recomputed(results)["last training loss"])


def test_what_is_not_there_is_named(home):
    with pytest.raises(InputError, match=r"no config 'nothing' in params/training.yaml; there are: cnn"):
        study.study(FinetuneParams(config="nothing"))
    with pytest.raises(InputError, match=r"has no run 'nothing'; it has: cnn"):
        study.study(FinetuneParams(source="replay", run="nothing"))
    with pytest.raises(InputError, match=r"holds no run that has ended"):
        study.study(FinetuneParams(run="pathmnist/nothing"))
    for run in ("../x", "a/../b", "/etc", "a/b/c", ".."):
        with pytest.raises(ValueError, match="run"):
            FinetuneParams(run=run)


def test_confusions_are_the_most_frequent_first():
    one = Evaluation("val", {}, 7, np.array([[2, 3], [1, 1]]), (np.zeros(0), np.zeros(0)))
    assert tables.confusions(one, ["a", "b"]).to_numpy().tolist() == [["a", "b", 3, 60.0], ["b", "a", 1, 50.0]]
    one = Evaluation("val", {}, 4, np.array([[[1, 2], [0, 1]], [[4, 0], [0, 0]]]), (np.zeros(0), np.zeros(0)))
    assert tables.confusions(one, ["x", "y"]).to_numpy().tolist() == [["x", "added", 2, pytest.approx(200 / 3)]]


def test_a_difference_of_one_bit_is_seen():
    one = {"a": [torch.zeros(2), (1.0, float("nan"))], "b": {"c": torch.tensor(0.0)}}
    same = {"b": {"c": torch.tensor(0.0)}, "a": [torch.zeros(2), (1.0, float("nan"))]}
    assert study._differing(one, same) == (4, 0)
    assert study._differing(one, {**same, "b": {"c": torch.tensor(-0.0)}}) == (4, 1)
    assert study._differing(one, {**same, "b": {}}) == (4, 1)
    assert study._differing([1.0, float("nan")], [1, 0.5]) == (2, 2)


def pictures(root):
    """Make a dataset of two classes; return a config that is trained on it."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 4)):
        for name in ("dark", "light"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                picture = draw.integers(0, 120, (12, 12, 3), np.uint8) + (120 if name == "light" else 0)
                Image.fromarray(picture.astype(np.uint8)).save(root / split / name / f"{number}.png")
    return TrainConfig(root=str(root), model_flavour="simple_cnn", loss_name="cross_entropy", load_pretrained=False,
                       num_workers=0, image_size=12, autocast_dtype="fp32", threads=1)


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "without the optimizer"])
def test_a_resume_is_compared_bit_for_bit(home, tmp_path, monkeypatch, broken):
    """Also that the comparison can fail: a resume that leaves out the optimizer's state is seen."""
    if broken:
        from lib.work.training import Trainer

        whole = Trainer.load_state
        monkeypatch.setattr(Trainer, "load_state", lambda self, state: whole(self, {
            **state, "optimizer": self.optimizer.state_dict()}))
    compared = study.resumed(pictures(tmp_path / "pictures"))
    assert (compared["compared"] > 0).all()
    assert (compared["different"].sum() > 0) == broken
    assert findings.resume_words(compared).startswith("**" if broken else "All")
