"""Which answer can be trusted: one table of errors on what was held out, and the line that is quoted of it beside an answer."""

import numpy as np
import pandas as pd
import pytest
from torch import nn

from lib.config.definitions import load_devices
from lib.measure import archive
from lib.predict import registry
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.gpu import rows
from lib.predict.networks import architectures, work
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import errors, quote
from lib.work import networks
from lib.work.networks import Network
from lib.work.run_config import RunConfig
from tests import output_of, refusal
from tests.gpu_networks import answered

CPU = "amd-epyc-2c-ea2da3d4"


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


def test_an_answer_of_a_card_quotes_its_kind_and_condition(table):
    answer = answered("rtx-4090", "vit_b_32", 64, layout="channels_last")
    row = one(table, device="rtx-4090", what="networks", kind="transformer", condition="eager-amp_fp16-nhwc", source="timm")
    assert [answer[f"held_out_{name}"] for name in ("mape_pct", "median_pct")] == pytest.approx(
        [row["mape_pct"], row["median_pct"]], rel=0.5), "of both layouts together"
    assert answer["held_out"].startswith("transformer networks on rtx-4090, infer, eager-amp_fp16-nhwc: MAPE ")
    assert answer["held_out"].endswith("left out: families (timm)")
    assert "it learned from no network on this card" in answered("b200", "vit_b_32", 64)["held_out"]


def test_every_gpu_figure_stands_beside_a_simple_rule(table):
    networks = table[table["what"].isin([errors.NETWORKS, errors.NEW_CARDS]) & table["device"].isin(load_devices())]
    assert networks["baseline_pct"].notna().all() and len(networks) > 50


@pytest.fixture
def cpu():
    model = registry.load(registry.model_files(shipped=True)[f"cpu-{CPU}", "fp32"])
    return registry.Predictor("cpu", "fp32", model)


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
