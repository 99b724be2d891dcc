"""Cards that no network was measured on: what others share is scored on a card left out, and a few networks correct it."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import paths, store
from lib.cli.main import main
from lib.config import definitions
from lib.errors import InputError
from lib.predict import registry
from lib.predict.advice import advise, suggestions
from lib.predict.composed import answers, evaluation, features, model, model_file, training
from lib.predict.composed.cards import adaptation, few_networks, new_cards, siblings
from lib.predict.composed.features import Condition
from lib.predict.composed.training import Cases
from lib.predict.operators.features_gpu import Chip
from tests.test_composed import EAGER, synthetic
from tests.test_own_models import COMMITTED

VENDORS = definitions.load_devices()


def test_a_low_power_limit_lowers_what_a_card_sustains_and_a_high_one_does_not():
    for device, share in (("rtx-4090", 1.0), ("rtx-3090", 1.0), ("rtx-pro-6000-max-q", (300 / 188 / 3.5) ** (1 / 3))):
        stated, sustained = Chip.of(VENDORS[device], "fp16"), features.sustained(VENDORS[device])
        assert sustained.flops_per_ms == pytest.approx(stated.flops_per_ms * share)
        assert sustained.bytes_per_ms == pytest.approx(stated.bytes_per_ms * share)
    silent = VENDORS["t4"].model_copy(update={"power_w": 0.0})
    assert features.sustained(silent) == Chip.of(silent, "fp16"), "a vendor that states no limit"


def of_card(device, slower=0.0, networks=70):
    """Return the networks of a card under one condition whose memory is ``slower`` (log) than usual, and their rows."""
    frames = synthetic(networks, 3)
    parts = model.split(torch.as_tensor(model.usual()))
    parts["moving"][:, 0] -= slower
    chip = features.sustained(VENDORS[device])
    logs = [float(model.log_ms(features.terms(frame, 64.0, chip, EAGER), parts)) for frame in frames]
    table = pd.DataFrame({"device": device, "network": [f"n{n}" for n in range(networks)], "image_size": 224, "mode": "infer",
                          "module": [f"m{n % 7}" for n in range(networks)], "batch_size": 64, "precision": "amp_fp16",
                          "layout": "nchw", "compiled": False, "torch": "2.9.1", "latency_ms": np.exp(logs)})
    return table, {(f"n{number}", 224): frame for number, frame in enumerate(frames)}


@pytest.fixture(scope="module")
def two_cards():
    tables, captures = zip(*(of_card("rtx-3090"), of_card("rtx-4090", slower=1.0)), strict=True)
    cards = new_cards.of_cards(pd.concat(tables, ignore_index=True), captures[0])
    return cards, new_cards.left_out(cards, (0, 10, 50), iterations=40)


def test_a_card_left_out_is_scored_with_none_and_with_some_of_its_networks(two_cards):
    _, predicted = two_cards
    scores = new_cards.curve(predicted).set_index(["device", "networks"])
    for device in ("rtx-3090", "rtx-4090"):
        assert scores.loc[(device, 0), "families"] == 7
        assert scores.loc[(device, 50), "mape"] < scores.loc[(device, 10), "mape"] < scores.loc[(device, 0), "mape"]
    assert scores.loc[("rtx-4090", 0), "bias"] < -10 < 10 < scores.loc[("rtx-3090", 0), "bias"], "one is slower than the other"


def test_the_interval_of_a_new_card_is_that_of_the_worst_card_left_out(two_cards):
    cards, predicted = two_cards
    shared = new_cards.train(cards, predicted, "timm", "Apache-2.0", iterations=40)
    (fitted,) = shared.conditions.values()
    zero = predicted[predicted["networks"] == 0]
    errors = (zero["log_predicted"] - zero["log_ms"]).abs()
    assert all((errors[zero["device"] == device] <= fitted.half).mean() >= 0.9 for device in cards)
    assert fitted.basis == "others"
    assert shared.siblings == ("rtx-3090", "rtx-4090")


def test_what_nobody_else_ran_is_answered_of_no_other_card():
    table, captures = of_card("rtx-3090")
    other, _ = of_card("rtx-4090")
    cards = new_cards.of_cards(pd.concat([table, other.assign(compiled=True)], ignore_index=True), captures)
    with pytest.raises(InputError, match="no two cards ran networks alike"):
        new_cards.left_out(cards, (0,), iterations=5)


def test_one_card_cannot_be_left_out():
    with pytest.raises(InputError, match="1 cards have 50 networks or more, two are needed"):
        new_cards.of_cards(*of_card("rtx-3090"))


def test_a_few_networks_tell_a_shift_and_none_tell_nothing():
    table, captures = of_card("rtx-4090", slower=0.6)
    cases = evaluation.cases_of(table, list(captures.values()), features.sustained(VENDORS["rtx-4090"]), EAGER)
    few, rest = adaptation.part_of(cases, np.arange(10)), adaptation.part_of(cases, np.arange(10, 70))
    np.testing.assert_allclose(adaptation.predict(rest, model.usual()), adaptation.predict(cases, model.usual())[10:])
    shift = adaptation.shift({"a": model.usual()}, {"a": few})
    before, after = (np.abs(adaptation.predict(rest, weights) - rest.log_ms).mean()
                     for weights in (model.usual(), model.usual() + shift))
    assert after < 0.2 * before
    exact = Cases(few.terms, adaptation.predict(few, model.usual()), few.levels, few.families)
    assert np.abs(adaptation.shift({"a": model.usual()}, {"a": exact})).max() < 1e-3


def test_many_networks_of_a_family_correct_a_card_less_where_their_errors_go_together(monkeypatch, two_cards):
    """Eight of ten networks are of one family, which is slower than others by a factor that these do not have."""
    (_, cases), = two_cards[0]["rtx-3090"].values()
    few, many = adaptation.part_of(cases, np.arange(10)), np.arange(10) < 8
    logs = adaptation.predict(few, model.usual()) + np.where(many, 0.3, 0.0)
    few = Cases(few.terms, logs, ("way:compiled",), np.where(many, "many", np.arange(10).astype(str)))

    def error_of_others(alike):
        monkeypatch.setattr(training, "ALIKE", {"way:compiled": alike})
        weights = model.usual() + adaptation.shift({"": model.usual()}, {"": few})
        return np.abs(adaptation.predict(few, weights) - logs)[~many].mean()
    assert error_of_others(0.5) < 0.8 * error_of_others(0.0)


@pytest.mark.parametrize(("device", "wider"), [("a10", 1), ("l4", 1), ("rtx-5090", 1), ("h100-sxm", 2), ("t4", 2)])
def test_a_card_of_an_architecture_that_nobody_measured_has_a_wider_interval(device, wider):
    shared, own = model_file.of_device(model_file.ANY), siblings.of_card(device)
    for condition, fitted in own.conditions.items():
        assert fitted.half == pytest.approx(wider * shared.conditions[condition].half)


def test_a_card_without_matrix_units_is_left_to_its_kernels():
    assert siblings.of_card("p4") is None
    assert siblings.of_card("mi300x") is None
    assert siblings.of_card("rtx-4090").siblings == (), "its own"


def test_advise_answers_for_a_card_that_no_network_was_measured_on():
    query = advise.Query("resnet50", 256, dtype="fp16")
    advice = advise.advise(query, ["rtx-5090", "rtx-4090"], crossovers=False)
    rows = advice.table.set_index("device")
    assert rows.loc["rtx-5090", "source"] == "zero-shot from networks on 3 cards"
    assert rows.loc["rtx-5090", "predicted_ms"] < rows.loc["rtx-4090", "predicted_ms"], "more of everything"
    quoted = rows.loc["rtx-5090", "held_out"]
    assert quoted.startswith("no network was measured on it so; all networks on any-card")
    assert "left out: each of rtx-3090, rtx-4090, rtx-pro-6000-max-q, and families of timm" in quoted
    shared = model_file.of_device(model_file.ANY)
    mape = shared.conditions[answers.condition_of(shared, "fp16")].scores["mape"]
    assert f"MAPE {mape:.1f} %" in quoted
    assert 80 < rows.loc["rtx-5090", "held_out_coverage_pct"] < 100
    faster = advise.advise(replace(query, compiled=True), ["rtx-5090"], crossovers=False).table["predicted_ms"][0]
    assert faster < rows.loc["rtx-5090", "predicted_ms"]


def test_an_answer_does_not_wait_for_what_only_fitting_uses():
    code = "import sys; from lib.predict.advice import advise, suggestions; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=False).returncode == 0


def test_kernels_of_a_cards_own_stand_before_networks_of_others():
    sources = {name: advise.advise(advise.Query(name, 64, dtype="bf16"), ["h200-sxm"], crossovers=False).table["source"][0]
               for name in ("vit_h_14", "resnet50")}
    assert sources["resnet50"].startswith("zero-shot from networks"), "no convolution was published in 16 bits"
    assert sources["vit_h_14"].startswith("predicted"), "most of its time is that of GEMMs measured there"


def test_measured_cards_are_offered_in_16_bits_alone():
    cards = {"rtx-3090", "rtx-4090", "rtx-pro-6000-max-q"}
    assert cards <= {one.device for one in registry.for_devices([], "bf16")}
    assert not cards & {one.device for one in registry.for_devices([], "fp32")}


NETWORKS = ("resnet18", "resnet34", "mobilenetv2_100", "efficientnet_b0", "regnety_004", "vgg11", "densenet121", "ghostnet_100",
            "mnasnet_100", "tf_mobilenetv3_small_100", "convnext_atto")


def benchmark(path, factor=1.6, names=NETWORKS, device="a10"):
    """Write a file as timm writes it, of a card that is slower than others say, by a factor."""
    composed, lines, eager = siblings.of_card(device), [], Condition("infer", "amp_fp16", "nchw", False, "2.9.1")
    for name in names:
        try:
            rows = few_networks.rows.of_network(few_networks.networks.network(f"timm:{name}", 2, "3x224x224"))
            ms = factor * answers.answer(composed, rows, 256, eager).predicted_ms
        except InputError:
            ms = 100.0
        lines.append(f"{name},{name.rstrip('0123456789')},{256e3 / ms:.3f},{ms:.4f},256,224,1.0")
    header = "model,module,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return benchmark(tmp_path_factory.mktemp("a10") / "benchmark-infer-amp-nchw-pt291-cu128-a10.csv")


def test_networks_of_its_user_calibrate_a_card(home, measured, capsys):
    before = advise.advise(advise.Query("resnet50", 256, dtype="fp16"), ["a10"], crossovers=False).table.iloc[0]
    assert main(["calibrate", "--device", "a10", "--networks", str(measured)]) == 0
    assert "a10 corrected by 11 networks; of families left out in turn MAPE 37.5 % before" in capsys.readouterr().out
    advice = advise.advise(advise.Query("resnet50", 256, dtype="fp16"), ["a10"], crossovers=False)
    row = advice.table.iloc[0]
    assert row["source"] == "learned from whole networks"
    assert row["predicted_ms"] / before["predicted_ms"] == pytest.approx(1.6, rel=0.1)
    assert row["high_ms"] / row["predicted_ms"] < before["high_ms"] / before["predicted_ms"]
    assert "n 11; left out: families of the networks that calibrated it" in row["held_out"]
    compiled = advise.advise(advise.Query("resnet50", 256, dtype="fp16", compiled=True), ["a10"], crossovers=False)
    assert "no network was measured on it so" in compiled.table["held_out"][0]
    shipped = registry.for_devices(["a10"], "fp16", shipped=True)[0]
    assert {one.basis for one in shipped.composed.conditions.values()} == {"others"}


def test_too_few_networks_or_none_that_can_be_built_are_one_line(home, tmp_path, capsys):
    path = benchmark(tmp_path / "benchmark-infer-amp-nchw-pt291-cu128-a10.csv", names=("resnet18", "nonet_1"))
    assert main(["calibrate", "--device", "a10", "--networks", str(path)]) == 2
    error = capsys.readouterr().err
    assert "1 networks of 1 families are usable, 10 or more" in error
    assert "timm:nonet_1" in error
    assert main(["calibrate", "--device", "mi300x", "--networks", str(path)]) == 2
    assert "mi300x is no card that starts from others" in capsys.readouterr().err


def test_networks_measured_with_this_project_are_read_as_conditions(tmp_path):
    table = store.read(next(COMMITTED.glob("networks/**/*.parquet")), "networks").head(4)
    table = table.assign(device=["cuda:0", "cuda:0", "cuda:0", "cpu"], dtype=["bf16", "fp16", "fp32", "bf16"], mode="infer",
                         network=["timm:vit_tiny_patch16_224", "resnet18", "resnet18", "resnet18"], status="ok",
                         verdict="stable", channels_last=[True, False, False, False], input_shape="")
    path = store.write(table, tmp_path / "networks.parquet", "networks", derived=True)
    read = few_networks.read(path)
    assert read["precision"].tolist() == ["amp_bf16", "amp_fp16"], "fp32 and other devices are none"
    assert read["layout"].tolist() == ["nhwc", "nchw"]
    assert read["module"].tolist() == ["vit", "resnet"]
    store.write(table.assign(device="cpu"), path, "networks", derived=True)
    with pytest.raises(InputError, match="has no inference in 16 bits on a GPU"):
        few_networks.read(path)


def test_the_learning_curve_that_ships_is_of_cards_left_out():
    table = pd.read_csv(model_file.FOLDER / model_file.CURVE)
    assert set(table["networks"]) == set(new_cards.NETWORKS)
    assert set(table["device"]) == set(model_file.of_device(model_file.ANY).siblings)
    mean = table[table["condition"].str.startswith("eager")].groupby("networks")["mape"].mean()
    assert mean[0] < 13
    assert mean[50] <= mean[20] <= mean[10] <= mean[0]


def test_a_card_is_answered_from_others_under_conditions_that_it_was_not_measured_under():
    query = advise.Query("resnet50", 256, dtype="fp16", compiled=True)
    row, shared = advise.advise(query, ["rtx-3090"], crossovers=False).table.iloc[0], model_file.of_device(model_file.ANY)
    assert row["source"] == "zero-shot from networks on 3 cards"
    assert row["held_out"].startswith("no network was measured on it so; all networks on any-card, infer, compiled, amp_fp16")
    assert row["high_ms"] / row["predicted_ms"] == pytest.approx(np.exp(shared.conditions[answers.condition_of(
        shared, "fp16", compiled=True)].half))
    eager = advise.advise(replace(query, compiled=False), ["rtx-3090"], crossovers=False).table.iloc[0]
    assert eager["source"] == "learned from whole networks"
    assert row["predicted_ms"] < eager["predicted_ms"]
    assert siblings.of_card("rtx-3090").under(Condition("infer", "amp_fp16", "nchw", False, "2.4.0")).others is not None
    with pytest.raises(InputError, match="rtx-3090 was not learned under compiled-amp_fp16-nhwc-2.9.1; there are: eager"):
        siblings.of_card("rtx-3090").under(Condition("infer", "amp_fp16", "nhwc", True, "2.9.1"))


def renamed(path, folder, name):
    """Return a copy of a benchmark file, of another torch or card by its name."""
    own = folder / name
    own.write_text(path.read_text())
    return own


def test_another_torch_leaves_what_others_say_with_the_errors_that_it_has(home, measured, tmp_path):
    """The card's networks ran under a torch that no measured card had: gains need one version, errors are those of another."""
    path = renamed(measured, tmp_path, "benchmark-infer-amp-nchw-pt280-cu128-a10.csv")
    few_networks.calibrate("a10", [path])
    composed, shared = siblings.of_card("a10"), model_file.of_device(model_file.ANY)
    others = {condition: fitted for condition, fitted in composed.conditions.items() if fitted.basis == "others"}
    assert {condition.torch for condition in composed.conditions} == {"2.8.0"}
    of_names = {condition.name: fitted for condition, fitted in shared.conditions.items()}
    for condition, fitted in others.items():
        assert fitted.scores == of_names[fitted.scored].scores
        assert fitted.scored == max((name for name in of_names if name.startswith(condition.how)), key=str)
        assert fitted.corrected == len(NETWORKS)
    query = advise.Query("resnet50", 256, dtype="fp16", compiled=True)
    advice = advise.advise(query, ["a10"], crossovers=False)
    row = advice.table.iloc[0]
    assert 80 < row["held_out_coverage_pct"] < 100
    assert row["held_out"].startswith("no network was measured on it so; corrected since by 11 of its networks; all networks "
                                      "on any-card, infer, compiled, amp_fp16, nchw, torch 2.9.1: MAPE")
    (gain,) = [one for one in suggestions.suggestions(advise.advise(replace(query, compiled=False), ["a10"], crossovers=False))
               if one.what == "torch.compile"]
    assert gain.predicted_gain > 1
    assert "with families and the card left out" in gain.why
    assert gain.why.endswith("(corrected since by 11 of its networks)")


def test_a_card_that_ships_says_that_its_errors_are_those_before_a_calibration(home, tmp_path):
    path = benchmark(tmp_path / "benchmark-infer-amp-nchw-pt280-cu128-rtx4090.csv", device="rtx-4090")
    query = advise.Query("resnet50", 256, dtype="fp16", compiled=True)
    before = advise.advise(query, ["rtx-4090"], crossovers=False).table.iloc[0]
    few_networks.calibrate("rtx-4090", [path])
    after = advise.advise(query, ["rtx-4090"], crossovers=False).table.iloc[0]
    assert after["predicted_ms"] > 1.2 * before["predicted_ms"]
    assert after["held_out"] == f"corrected since by 11 of its networks; {before['held_out']}"


def test_networks_count_once_that_were_measured_at_several_batch_sizes(home, measured, tmp_path):
    """Twice the rows of as many networks: what is said of a gain and of a time names the same number of networks."""
    path, lines = tmp_path / measured.name, measured.read_text().splitlines()
    halves = [f"{name},{module},{rate},{float(ms) / 2},128,{rest}" for name, module, rate, ms, _, rest in
              (line.split(",", 5) for line in lines[1:])]
    path.write_text("\n".join([*lines, *halves]) + "\n")
    few_networks.calibrate("a10", [path])
    for condition, fitted in siblings.of_card("a10").conditions.items():
        assert fitted.corrected == len(NETWORKS)
        assert (fitted.basis == "few") == (condition.how == "eager-amp_fp16-nchw")
        assert fitted.corrected_since == (0 if fitted.basis == "few" else len(NETWORKS)), "their own scores were made by them"
        assert fitted.basis != "few" or fitted.scores["n"] == 2 * len(NETWORKS)
    advice = advise.advise(advise.Query("resnet50", 256, dtype="fp16"), ["a10"], crossovers=False)
    (gain,) = [one for one in suggestions.suggestions(advice) if one.what == "torch.compile"]
    assert gain.why.endswith("(corrected since by 11 of its networks)")
    assert "corrected since" not in advice.table["held_out"][0]


@pytest.mark.parametrize(("options", "words"), [
    (["--dtype", "fp16"], "leave out --dtype"), (["--budget-s", "60", "--dtype", "fp32"], "leave out --dtype, --budget-s"),
    (["--device", "cpu"], "corrects the model of a GPU, which cpu is not"), ([], "the model of a GPU, which cpu is not")])
def test_what_a_calibration_by_networks_does_not_take_is_one_line(home, tmp_path, capsys, options, words):
    path = tmp_path / "benchmark-infer-amp-nchw-pt291-cu128-a10.csv"
    path.write_text("model\n")
    assert main(["calibrate", "--networks", str(path), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1
