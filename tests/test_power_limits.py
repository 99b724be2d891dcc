"""Power and joules of networks on GPUs, clocks and power limits: laws, refusals, and answers."""

import json
from dataclasses import replace
from math import inf

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.config.definitions import load_devices
from lib.predict import held_out
from lib.predict.evaluation import power
from lib.predict.power import energy, limits
from lib.predict.power.energy import Load
from lib.predict.trust import errors
from lib.work.run_config import DeviceCondition
from tests import advice_on, output_of, refusal, refused

SHIPPED, BOARDS = limits.shipped(), energy.shipped()
V100, T4, TRAINING = "v100-pcie-32gb", "t4", ("simple_cnn", 4096, "3x28x28", "train")
COMPUTE = Load(4e11, 1e9, 0.0, 100.0, 1.0, "fp32")  # 4 TFLOP/s and 10 GB/s
MEMORY = Load(1e9, 3e10, 1.0, 100.0, 1.0, "fp32")
WAITING = replace(MEMORY, launches_ms=100.0)


@pytest.mark.parametrize("device, drawn", [("p100-pcie-16gb", 0.9), ("t4", 0.7), ("h100-sxm", 0.6)])
def test_less_power_takes_longer_and_no_limit_changes_nothing(device, drawn):
    card = load_devices()[device]
    drawn_w = drawn * card.power_w
    table = pd.DataFrame([SHIPPED.ratios(device, limit_w, drawn_w)
                          for limit_w in np.linspace(card.least_power_w, card.power_w, 20)])
    assert table["time_ratio"].is_monotonic_decreasing
    assert (table["energy_ratio"] <= table["time_ratio"]).all()
    assert table[["time_ratio", "energy_ratio"]].iloc[-1].tolist() == [1, 1]
    idle = SHIPPED.ratios(device, card.least_power_w, 0.2 * card.power_w)
    assert idle["time_ratio"] == 1, "kernels that wait for the host"


@pytest.mark.parametrize("device, limit, words", [
    ("t4", 71, "t4 takes power limits of 60 to 70 W, not 71 W"),
    ("cpu", 60, "cpu has no known power"),
    ("b200", 900, "b200 has no known power limits")])
def test_limits_that_a_device_does_not_take_are_refused(device, limit, words):
    with refused(words):
        advice_on(device, "simple_cnn", 8, "3x28x28", power_limit_w=limit)


@pytest.mark.parametrize("device, clock, words", [
    ("t4", 1800, r"t4 takes clocks of 1 to 1749 MHz \(1.1 times its boost clock, 1590\), not 1800"),
    ("t4", -1, "t4 takes clocks of 1 to 1749 MHz"),
    ("cpu", 900, "cpu has no known clock; those of GPUs are boost_mhz of params/devices.yaml")])
def test_clocks_that_a_device_does_not_take_are_refused(device, clock, words):
    with refused(words):
        advice_on(device, "simple_cnn", 8, "3x28x28", clock_mhz=clock)


def test_a_clock_beside_a_power_limit_and_none_are_refused():
    with refused(r"a power limit \(60 W\) and a clock \(900 MHz\) are not predicted together"):
        DeviceCondition(power_limit_w=60, clock_mhz=900)
    assert "clock-mhz" in refusal("advise", "resnet18", "--device", "t4", "--clock-mhz", "0")


def test_half_the_clock_doubles_compute_and_hardly_changes_what_waits():
    assert 1.8 < BOARDS.slowdown(COMPUTE, 0.5) <= 2
    assert 1.2 < BOARDS.slowdown(MEMORY, 0.5) < 1.6
    assert BOARDS.slowdown(WAITING, 0.5) == pytest.approx(1)
    for load in (COMPUTE, MEMORY, WAITING):
        same = BOARDS.ratios(load, V100, 1380)
        assert (same["time_ratio"], same["energy_ratio"]) == pytest.approx((1, 1))
        assert BOARDS.ratios(load, V100, 1242)["energy_ratio"] < 1, "the voltage falls with the clock"


def test_no_clock_above_that_which_the_power_limit_leaves_changes_anything():
    hungry = replace(COMPUTE, flops=4e12, dtype="fp16")
    usual = BOARDS.usual_share(hungry, T4)
    waiting = replace(WAITING, bytes=1e9)
    assert 0.4 < usual < 0.7 and BOARDS.usual_share(waiting, T4) == 1
    for clock_mhz in (1590, 1749, usual * 1590):
        same = BOARDS.ratios(hungry, T4, clock_mhz)
        assert (same["time_ratio"], same["energy_ratio"]) == pytest.approx((1, 1))
    assert BOARDS.ratios(hungry, T4, usual * 795)["time_ratio"] > 1.5
    assert BOARDS.ratios(waiting, T4, 1749)["time_ratio"] == pytest.approx(1)
    assert BOARDS.ratios(COMPUTE, V100, 1500)["time_ratio"] < 1


def test_watts_are_energies_of_flops_and_bytes_over_the_time():
    card = load_devices()[T4]
    one = replace(COMPUTE, flops=1e9, bytes=1e9)
    rates = dict(zip(energy.TERMS, energy.terms(one, card, 10.0), strict=True))
    assert rates["static_w"] == 1
    assert rates["multiprocessor_w_per_ghz"] == pytest.approx(40 * 1.59)
    assert rates["pj_per_flop_32_bits"] == pytest.approx(0.1 * 1.25**2), "TFLOP/s, two years before 2020"
    assert rates["pj_per_bit"] == pytest.approx(0.8 * 7.5 / 3.9), "Tbit/s of GDDR6"
    assert rates["pj_per_flop_16_bits"] == 0
    many = energy.terms(replace(one, flops=1e15, bytes=1e15), card, 10.0)
    assert many[3] == pytest.approx(8.1 * 1.25**2), "not above the peak rate of the card"
    slow = energy.drawn_w(np.ones(5), 0.5, np.ones((2, 5)), np.array([1.0, 0.25]))
    assert slow.tolist() == [5, 2.75], "at half of the voltage, a quarter of the energies that follow"


@given(st.sampled_from(["t4", "h200-sxm", "l40s"]), st.floats(1e6, 1e15), st.floats(1e6, 1e12),
       st.sampled_from(["fp32", "fp16"]))
def test_power_lies_between_static_power_and_the_maximum_of_the_board(device, flops, moved, dtype):
    load = Load(flops, moved, 0.5, 10.0, 1.0, dtype)
    watts = BOARDS.watts(load, device, 10.0)
    assert 0 < BOARDS.watts(load, device, inf) <= watts <= load_devices()[device].power_w
    assert watts <= BOARDS.watts(replace(load, flops=2 * flops), device, 10.0)
    assert BOARDS.watts(load, device, 10.0, 0.5) <= watts


def test_an_answer_under_a_limit_and_the_limit_that_is_suggested():
    usual, limited = (advice_on(T4, *TRAINING, power_limit_w=limit) for limit in (0, 60))
    row = limited.table.iloc[0]
    assert row["predicted_ms"] == pytest.approx(usual.table["predicted_ms"].iloc[0] * row["time_ratio"])
    assert row["time_ratio"] > 1
    shared = [advice_on(T4, *TRAINING, gpus=2, power_limit_w=limit).table for limit in (0, 60)]
    assert shared[0]["scaling_efficiency"].tolist() == pytest.approx(shared[1]["scaling_efficiency"].tolist())
    question = ["advise", "resnet18", "--batch-size", "64", "--device", "v100-pcie-32gb"]
    assert "v100-pcie-32gb limited to 150 W" in output_of(*question, "--power-limit", "150")
    assert "nvidia-smi -pl" in output_of(*question)


def test_an_answer_at_a_clock():
    usual, slow = (advice_on(V100, *TRAINING, clock_mhz=clock).table.iloc[0] for clock in (0, 690))
    assert pd.isna(usual["clock_mhz"]) and slow["clock_mhz"] == 690
    assert 1.2 < slow["time_ratio"] < 2
    for part in ("forward_ms", "backward_ms", "optimizer_ms"):
        assert slow[part] == pytest.approx(usual[part] * slow["time_ratio"])
    assert (slow["loader_wait_ms"], slow["h2d_ms"]) == (usual["loader_wait_ms"], usual["h2d_ms"])
    assert slow["energy_j"] < usual["energy_j"]
    text = output_of("advise", "resnet18", "--batch-size", "64", "--device", V100, "--clock-mhz", "690")
    assert f"{V100} at 690 MHz: " in text and "nvidia-smi -pl" not in text


def test_questions_have_clocks(tmp_path):
    table = tmp_path / "questions.csv"
    table.write_text("model,batch_size,clock_mhz\nresnet18,8,690\nresnet18,8,\nresnet18,8,9000\nresnet18,8,x\n")
    output = tmp_path / "answers.csv"
    output_of("advise", "--questions", table, "--device", V100, "--clock-mhz", "1380", "--output", output)
    answers = pd.read_csv(output)
    assert answers["clock_mhz"].tolist()[:2] == [690, 1380]
    assert answers["predicted_ms"][0] > answers["predicted_ms"][1]
    assert f"{V100} takes clocks of 1 to 1518 MHz" in answers["error"][2]
    assert answers["error"][3] == "clock_mhz 'x' is no whole number of 1 or more"


def test_joules_are_power_times_time_on_any_card_with_a_stated_power():
    question = ["advise", "resnet18", *"--batch-size 8 --device t4 --device cpu --no-ceilings --json".split()]
    card, cpu = sorted(json.loads(output_of(*question)), key=lambda row: row["device"], reverse=True)
    answer = advice_on(T4, "resnet18", 8).answers[0]
    watts = BOARDS.watts(answer.load, T4, card["predicted_ms"], BOARDS.usual_share(answer.load, T4))
    assert 10 < watts < 70
    assert card["energy_j"] == pytest.approx(watts * card["predicted_ms"] / 1e3 / 8)
    assert card["energy_low_j"] < card["energy_j"] < card["energy_high_j"]
    assert cpu["energy_j"] is None
    assert "J/image: predicted power of the board times predicted time" in output_of(*question[:-1], "--explain")
    limited = advice_on(T4, "resnet18", 8, power_limit_w=60).table.iloc[0]
    assert limited["energy_j"] == pytest.approx(card["energy_j"] * limited["energy_ratio"])


def published_rows(model):
    """Return rows of two cards whose times and watts are exactly those of a model."""
    rows = []
    for device in (V100, "a10"):
        for load in (COMPUTE, MEMORY, WAITING, replace(COMPUTE, dtype="fp16", flops=3e12)):
            for part in (0.4, 0.7, 0.85, 1.0):
                clock_mhz = part * load_devices()[device].boost_mhz
                share, ratio = model.at_clock(load, device, clock_mhz)
                rows.append({"device": device, "load": load, "share": part, "mean_share": share,
                             "clock_mhz": clock_mhz, "measured_ms": 100 * ratio, "step_ms": 100.0,
                             "power_w": model.watts(load, device, 100 * ratio, share), "mode": "infer",
                             "model": f"{load.dtype} {load.memory_share}", "dtype": load.dtype, "input": "",
                             "batch_size": int(load.launches_ms), "source": "here", "licence": "MIT"})
    return pd.DataFrame(rows)


def test_what_the_model_says_is_learned_again():
    rows = published_rows(BOARDS)
    learned = power.fit(rows)
    answers = power.predicted(learned, rows)
    assert np.allclose(answers["joules_timed"], rows["power_w"] * rows["measured_ms"] / 1e3, rtol=0.1)
    assert np.allclose(answers["time_ms"], rows["measured_ms"], rtol=0.05)
    table = power.held_out_rows(rows, power.left_out(rows))
    assert set(table["what"]) == {held_out.JOULES, held_out.JOULES_TIMED, held_out.CLOCK}
    assert (table["low"] < table["predicted"]).all() and (table["predicted"] < table["high"]).all()


def test_training_names_what_is_missing(tmp_path):
    with refused("lacks files of EnergAIzer .* or of Zeus"):
        power.read(tmp_path)


def test_errors_on_cards_left_out_meet_what_the_page_says():
    table = errors.graded(errors.table()).set_index("answer to")["typical error %"]
    joules = "joules of a network on a card that nobody measured"
    assert table[f"{joules}, given its time"] < table[joules] < 15
    assert table["the time of a network at a stated clock"] < 20
