"""Which answer can be trusted: one table of errors on what was held out, and the line that is quoted of it beside an answer."""

import math

import numpy as np
import pandas as pd
import pytest
from torch import nn

from lib.measure import archive
from lib.predict import held_out as held_out_rows
from lib.predict import registry
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.cards import card_errors, card_model, rows
from lib.predict.cards.features import Condition
from lib.predict.networks import architectures, work
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import errors, quote
from lib.work import networks
from lib.work.networks import Network
from lib.work.run_config import RunConfig
from tests import output_of, refusal, refused
from tests.test_cards import EAGER, answered

CPU = "amd-epyc-2c-ea2da3d4"
SHIPPED = card_model.FOLDER


@pytest.fixture(scope="module")
def table():
    return errors.table()


@pytest.fixture(scope="module")
def predicted():
    return pd.read_csv(archive.machine_folder(CPU) / "predictions/networks.csv")


def of(table, **values):
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def one(table, **values):
    (row,) = of(table, **values).to_dict("records")
    return row


def mixer():
    """Return patches, a layer norm, and linear layers: neither convolution nor attention."""
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))


class Attention(nn.Module):
    """Patches, and products of activations without a softmax, as linear attention has them."""

    def __init__(self, window=4):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, window, 4, window // 2 - 2)

    def forward(self, x):
        x = self.patches(x).flatten(2)
        return (x @ (x.transpose(1, 2) @ x)).mean(2)


def network_of(build):
    """Return a network of pictures by name, or of a module that is made."""
    return networks.network(build, 2) if isinstance(build, str) else Network("own", build, (2, 3, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("build, kind", [
    ("convnext_tiny", "CNN"), ("vit_b_32", "transformer"), (mixer, "other"), (Attention, "transformer"),
    (lambda: Attention(8), "hybrid")])
def test_kinds_are_of_what_is_computed_and_the_same_of_both_forms_of_work(build, kind):
    network = network_of(build)
    assert architectures.of_work(work.captured(network, "infer").table) == kind
    assert architectures.of_work(work.captured(network, "infer", device="cuda:0").table) == kind
    assert architectures.of_rows(rows.of_network(network)) == kind


def test_errors_of_networks_on_a_cpu_are_those_of_its_predictions(table, predicted):
    case = of(predicted, mode="train", memory="kept", batch_size=8, tuning=False, status="ok")
    case = case[~case["network"].str.match("W[0-9]")]
    usable = case[case["verdict"] != "unusable"]
    error = usable["predicted_ms"] / usable["latency_ms"] - 1
    shown = of(table, device=CPU, mode="train", condition="batch 8, retained heap")
    row = one(shown, what="networks", kind="all")
    inside = usable["latency_ms"].between(usable["low_ms"], usable["high_ms"])
    assert [row[name] for name in ("mape_pct", "bias_pct", "coverage_pct", "n")] == pytest.approx(
        [error.abs().mean() * 100, error.mean() * 100, inside.mean() * 100, len(usable)])
    assert one(shown, what=errors.EVERY_NETWORK)["n"] == len(case)
    assert of(shown, what="networks")["n"].sum() == 2 * len(usable), "all, and each by its kind"


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090", "rtx-pro-6000-max-q"])
def test_errors_by_kind_are_of_the_models_that_ship(device):
    """Both are written by models --train timm: of another training they would differ."""
    of_kinds = card_errors.scores(device, errors.NETWORKS)
    half = of_kinds.apply(lambda row: card_errors.half_of(device, Condition.from_name(row["condition"]), row["kind"]), axis=1)
    assert of_kinds.loc[half.notna(), "cover"].between(84, 95).all() and half[of_kinds["kind"] == "all"].notna().all()
    for condition, fitted in card_model.of_device(device).conditions.items():
        kinds = of(of_kinds, condition=condition.name)
        of_all = one(kinds, kind="all")
        assert [of_all[name] for name in ("mape", "median", "bias", "n")] == pytest.approx(
            [fitted.scores[name] for name in ("mape", "median", "bias", "n")], abs=0.05), "fits differ in their last digits"
        part = kinds[kinds["kind"] != "all"]
        assert part["mape"] @ part["n"] / fitted.scores["n"] == pytest.approx(fitted.scores["mape"], abs=0.05)


@pytest.mark.parametrize("name, message", [("final.csv", "lacks the columns"), ("rtx-4090.parquet", "rtx-4090.parquet")])
def test_a_damaged_table_is_one_line(name, message, tmp_path, monkeypatch):
    (tmp_path / name).write_text("device,mape\nrtx-4090,3\n")
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    with refused(message):
        list(errors.of_final_set() if "final" in name else errors.scores_of_card(card_model.of_device("rtx-4090", SHIPPED)))


def test_an_answer_of_a_card_quotes_its_kind_and_condition(table):
    answer = answered("rtx-4090", "vit_b_32", 64, layout="channels_last")
    row = one(table, device="rtx-4090", what="networks", kind="transformer", condition="eager, amp_fp16, nhwc, torch 2.4.0")
    assert [answer[f"held_out_{name}"] for name in quote.NUMBERS.values()] == [row[name] for name in quote.NUMBERS.values()]
    assert answer["held_out"].startswith("transformer networks on rtx-4090, infer, eager, amp_fp16, nhwc, torch 2.4.0: MAPE ")
    assert answer["held_out"].endswith("left out: families of timm (timm)")


@pytest.fixture
def cpu():
    model = registry.load(registry.model_files(shipped=True)[f"cpu-{CPU}", "fp32"])
    return registry.Predictor("cpu", "fp32", model)


def gpu(device, dtype):
    return registry.for_devices([device], dtype, shipped=True)[0]


def quoted(predictor, *query, **more):
    """Return what is quoted beside the answer to a query."""
    return quote.quote(Answer(CapturedQuery(RunConfig(*query, **more)), predictor))


@pytest.mark.parametrize("model, mode, batch, words", [
    ("resnet18", "infer", 512, "CNN networks on {}, infer, batch 8, default allocator"),
    ("resnet18", "train", 8, "forward and backward of CNN networks on {}, train, batch 8, retained heap"),
    ("vit_b_32", "infer", 8, "transformer networks on {}, infer, batch 8, default allocator")])
def test_an_answer_of_a_cpu_quotes_networks_of_its_kind_at_the_nearest_batch(cpu, model, mode, batch, words, table):
    words = words.format(CPU)
    given = quoted(cpu, model, batch, mode=mode)
    assert given.words.startswith(words)
    row = one(table, device=CPU, what="networks", kind=words.split(" networks")[0].rpartition(" ")[2], mode=mode,
              condition=words.split(f"{mode}, ")[1])
    assert given.numbers["mape"] == row["mape_pct"]
    assert ("few; all kinds" in given.words) == (row["n"] < 10)


def test_a_calibrated_cpu_quotes_its_own_calibration(cpu):
    cpu.model.facts[CALIBRATED] = f"cpu-{CPU}"
    given, compositions = quoted(cpu, "simple_cnn"), cpu.model.compositions
    assert "left out: each network of the calibration (measured here)" in given.words
    assert given.numbers["mape"] == compositions["infer default"].scores["mape"]
    compositions.clear()
    assert quoted(cpu, "simple_cnn").words == "no network was measured when this machine was calibrated"


def test_an_answer_of_kernels_quotes_its_operators_by_their_share_of_the_time():
    t4 = gpu("t4", "fp32")
    given, scores = quoted(t4, "resnet50", 8), [part.scores["mape"] for part in t4.model.parts.values() if part.scores]
    assert min(scores) < given.numbers["mape"] < max(scores)
    assert math.isnan(given.columns["held_out_coverage_pct"])
    assert given.words.startswith("it learned from no network on this card; of its operators, by share of the time: ")
    assert "convolution forward" in given.words
    assert "shapes, in folds (neusight)" in given.words
    assert errors.of_part(t4.model, "memory forward")["left_out"] == "shapes, in folds"
    assert "(by any-gpu): MAPE" in quoted(gpu("h100-sxm", "fp32"), "resnet50", 8).words


def test_each_question_that_people_ask_has_a_grade_by_its_mean_error(table):
    """Means are over devices and conditions, by their numbers of predictions."""
    graded = errors.graded(table).set_index("answer to")
    assert list(graded.index) == list(errors.QUESTIONS) and (graded["n"] > 0).all()
    for line in graded.itertuples():
        assert line.grade == next(letter for letter, most in errors.ERROR_GRADES.items() if line[2] <= most)
    steps = of(table, what=errors.STEPS)
    expected = np.average(steps["mape_pct"], weights=steps["n"])
    assert graded.loc["a whole training step on a measured CPU", "mean error %"] == pytest.approx(expected)


def test_the_verb_prints_the_errors_and_trains_nothing_beside(table, monkeypatch):
    monkeypatch.setattr(errors, "table", lambda *_: table)  # which takes seconds
    lines = output_of("models", "--errors", "--all").splitlines()
    assert lines[0].split()[:4] == ["device", "what", "kind", "mode"] and len(lines) > 40
    short = output_of("models", "--errors")
    assert len(short.splitlines()) == 2 + len(errors.QUESTIONS) and "NaN" not in short
    assert "not allowed with" in refusal("models", "--errors", "--train", "cpu")


def test_a_training_writes_its_predictions_and_they_tell_errors_by_kind(tmp_path, monkeypatch):
    """A network that is predicted half again too slow among CNNs shows there, and nowhere else."""
    part = pd.DataFrame({"network": ["a", "b"] * 60, "image_size": 8, "module": ["m", "c"] * 60, "batch_size": 4,
                         "device": "card", "condition": EAGER.name, "fold": [0, 1] * 60, "log_ms": 0.0,
                         "log_predicted": [0.0, math.log(1.5)] * 60,
                         "kind": [architectures.of_rows(rows.of_network(network_of(build)))
                                  for build in (mixer, lambda: nn.Conv2d(3, 8, 3))] * 60})
    predictions = card_errors.table(part)
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    held_out_rows.save(predictions, tmp_path / "card.json")
    by_kind = card_errors.scores("card", errors.NETWORKS)
    assert by_kind.set_index("kind")["mape"].to_dict() == pytest.approx({"all": 25, "CNN": 50, "other": 0})
