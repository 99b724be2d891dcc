"""Cards that no network was measured on: scored on cards left out, answered from others, calibrated by a few networks."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib import store
from lib.predict import held_out, registry
from lib.predict.cards import (
    calibration,
    card_errors,
    card_model,
    fitting,
    rows,
    unseen_cards,
    whole_networks,
)
from lib.work import networks
from lib.work.run_config import RunConfig
from tests import output_of, refusal, refused
from tests.test_cards import EAGER, advised, answered, of_card
from tests.test_own_models import COMMITTED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables():
    """Give networks of two cards, of which one has slower memory than usual."""
    return of_card("rtx-3090"), of_card("rtx-4090", slower=1.0)


@pytest.fixture(scope="module")
def two_cards(tables):
    cards = unseen_cards.of_cards(pd.concat(tables, ignore_index=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "ITERATIONS", 40)
        return cards, unseen_cards.left_out(cards)


def test_a_card_left_out_is_scored_with_none_of_its_networks(two_cards, tmp_path, monkeypatch):
    monkeypatch.setattr(card_model, "FOLDER", tmp_path)
    rows_of = unseen_cards.table(two_cards[1])
    assert rows_of.groupby("device")["group"].nunique().tolist() == [7, 7]
    held_out.save(rows_of, tmp_path / f"{card_model.ANY}.json")
    alone, together = (card_errors.scores(card_model.ANY, what) for what in (held_out.NEW_CARDS, held_out.NETWORKS))
    assert together[["device", "kind", "n"]].to_numpy().tolist() == [[card_model.ANY, "all", 140]]
    bias = alone.set_index("device")["bias"]
    assert bias["rtx-4090"] < -10 < 10 < bias["rtx-3090"], "one is slower than the other"


def test_the_interval_of_a_new_card_is_that_of_the_worst_card_left_out(two_cards):
    cards, predicted = two_cards
    shared = unseen_cards.train(cards, predicted)
    (fitted,) = shared.conditions.values()
    inside = (predicted["log_predicted"] - predicted["log_ms"]).abs() <= fitted.half
    assert (inside.groupby(predicted["device"]).mean() >= 0.9).all()
    assert fitted.basis == "others" and shared.siblings == ("rtx-3090", "rtx-4090")


@pytest.mark.parametrize("device, wider", [("rtx-5090", 1), ("t4", 2)])
def test_a_card_of_an_architecture_that_nobody_measured_has_a_wider_interval(device, wider):
    shared, trained = (card_model.of_device(name).conditions for name in (card_model.ANY, "rtx-3090"))
    for condition, fitted in card_model.load_for(device).conditions.items():
        assert fitted.half == pytest.approx(wider * (trained if condition.mode == "train" else shared)[condition].half)


def test_a_card_without_matrix_units_is_left_to_its_kernels():
    assert card_model.load_for("p4") is None
    assert card_model.load_for("mi300x") is None
    assert card_model.load_for("rtx-4090").siblings == (), "its own"


def test_advise_answers_for_a_card_that_no_network_was_measured_on():
    answer, measured = answered("rtx-5090"), answered("rtx-4090")
    assert answer["source"] == "zero-shot from networks on rtx-4090, rtx-pro-6000-max-q"
    assert answer["predicted_ms"] < measured["predicted_ms"], "more of everything"
    shared = card_model.of_device(card_model.ANY)
    mape = shared.conditions[whole_networks.condition_of(shared, RunConfig(dtype="fp16"))].scores["mape"]
    assert answer["held_out"].startswith("it learned from no network on this card; all networks on any-card")
    assert f"MAPE {mape:.1f} %" in answer["held_out"]
    assert "left out: each of rtx-3090, rtx-4090, rtx-pro-6000-max-q, and families of timm" in answer["held_out"]
    assert 80 < answer["held_out_coverage_pct"] < 100


def test_kernels_of_a_cards_own_stand_before_networks_of_others():
    sources = {name: answered("h200-sxm", name, 64, "bf16")["source"] for name in ("vit_h_14", "resnet50")}
    assert sources["resnet50"].startswith("zero-shot from networks"), "no convolution was published in 16 bits"
    assert sources["vit_h_14"].startswith("predicted"), "most of its time is that of GEMMs measured there"


NETWORKS = ("resnet10t", "resnet18", "resnet34", "mobilenetv2_100", "mnasnet_small", "lcnet_050", "vgg11", "vgg13",
            "regnetx_002", "tf_mobilenetv3_small_100", "convnext_atto")


@pytest.fixture(scope="module", autouse=True)
def captured_once():
    """Capture each network once, whichever tests need it."""
    known, of_network = {}, rows.of_network

    def once(network, *ready):
        if (network.name, network.shape) not in known:
            known[network.name, network.shape] = of_network(network, *ready)
        return known[network.name, network.shape]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "of_network", once)
        yield


def benchmark(folder, device="a10", names=NETWORKS, torch="291"):
    """Write a file as timm writes it, of a card that takes 1.6 times as long as others say, but 100 ms for unknown networks."""
    card, lines = card_model.load_for(device), []
    for name in names:
        ms = 100.0
        if name in NETWORKS:
            of_work = rows.of_network(networks.network(f"timm:{name}", rows.BATCH, "3x224x224"))
            ms = 1.6 * whole_networks.answer(card, of_work, 256, EAGER).predicted_ms
        lines.append(f"{name},{name.rstrip('0123456789')},{256e3 / ms:.3f},{ms:.4f},256,224,1.0")
    header = "model,module,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count"
    path = folder / f"benchmark-infer-amp-nchw-pt{torch}-cu128-{device.replace('-', '')}.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_networks_of_its_user_calibrate_a_card(home):
    before = answered("a10")
    out = output_of("calibrate", "--device", "a10", "--networks", benchmark(home))
    assert "a10 corrected by 11 networks; of families left out in turn MAPE 37.5 % before" in out
    after = answered("a10")
    assert after["source"] == "learned from whole networks"
    (answer,) = advised("a10").answers
    card, batch_size = card_model.load_for("a10", shipped=True), answer.work.batch_size
    rows = answer.captured.kernel_rows
    learned_ms = whole_networks.answer(card, rows, batch_size, EAGER).predicted_ms  # without launches of others
    assert after["predicted_ms"] / learned_ms == pytest.approx(1.6, rel=0.1)
    assert after["high_ms"] / after["predicted_ms"] < before["high_ms"] / before["predicted_ms"]
    assert "n 11; left out: families of the networks that calibrated it" in after["held_out"]
    assert "it learned from no network on this card" in answered("a10", compiled=True)["held_out"]
    (shipped,) = registry.for_devices(["a10"], "fp16", shipped=True)
    assert {one.basis for one in shipped.card.conditions.values()} == {"others"}


@pytest.mark.parametrize("options, words", [
    (["--device", "a10"], "1 networks of 1 families are usable, 10 or more.*timm:nonet_1"),
    (["--device", "mi300x"], "mi300x cannot be calibrated: params/devices.yaml needs an entry"),
    (["--budget-s", "60", "--dtype", "fp32"], "leave out --dtype, --budget-s"),
    (["--device", "cpu"], "corrects the model of a GPU, which cpu is not")])
def test_what_no_calibration_by_networks_can_do_is_one_line(home, options, words):
    path = benchmark(home, names=("resnet18", "nonet_1"))
    assert re.search(words, refusal("calibrate", "--networks", path, *options))


def test_networks_measured_with_this_project_are_read_as_conditions(tmp_path):
    table = store.read(next(COMMITTED.glob("networks/**/*.parquet")), "networks").head(4)
    table = table.assign(device=["cuda:0", "cuda:0", "cuda:0", "cpu"], dtype=["bf16", "fp16", "fp32", "bf16"], mode="infer",
                         network=["timm:vit_tiny_patch16_224", "resnet18", "resnet18", "resnet18"], status="ok",
                         verdict="stable", channels_last=[True, False, False, False], input_shape="")
    path = store.write(table, tmp_path / "networks.parquet", "networks", derived=True)
    read = calibration.read(path)[["precision", "layout", "module"]]  # none in fp32, none of a CPU
    assert read.to_numpy().tolist() == [["amp_bf16", "nhwc", "vit"], ["amp_fp16", "nchw", "resnet"]]
    store.write(table.assign(device="cpu"), path, "networks", derived=True)
    with refused("has no 16-bit inference on a GPU; --networks needs it"):
        calibration.read(path)


def test_the_scores_that_ship_are_of_cards_left_out():
    table = card_errors.scores(card_model.ANY, held_out.NEW_CARDS)
    assert set(table["device"]) == set(card_model.of_device(card_model.ANY).siblings)
    assert table.loc[table["condition"].str.startswith("eager"), "mape"].mean() < 13


def test_a_card_is_answered_from_others_under_conditions_that_it_was_not_measured_under():
    row, shared = answered("rtx-3090", compiled=True), card_model.of_device(card_model.ANY)
    assert row["source"] == "zero-shot from networks on rtx-4090, rtx-pro-6000-max-q"
    assert row["held_out"].startswith("it learned from no network on this card; all networks on any-card, infer, compiled")
    half = shared.conditions[whole_networks.condition_of(shared, RunConfig(dtype="fp16", compiled=True))].half
    assert row["high_ms"] / row["predicted_ms"] > np.exp(half)
    eager, own = answered("rtx-3090"), card_model.load_for("rtx-3090")
    assert eager["source"] == "learned from whole networks"
    assert row["predicted_ms"] < eager["predicted_ms"]
    with refused("rtx-3090 was not learned under compiled-amp_fp16-nhwc-2.9.1; there are: eager"):
        own.under(replace(EAGER, layout="nhwc", compiled=True))
