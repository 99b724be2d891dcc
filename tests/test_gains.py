"""What another layout or element type gains on a CPU: laws of the model, known answers, and what is refused."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from lib import store
from lib.measure import machine
from lib.predict import gain_training, registry
from lib.predict.advice import advise
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.advice.suggestions import changes
from lib.predict.networks import gains
from lib.predict.networks.gains import TERMS
from lib.predict.scores import score_gains
from lib.work.run_config import RunConfig
from tests.gpu_networks import advised, answered, change
from tests.test_published import refused


def test_factors_of_kinds_are_found_from_sums_of_networks():
    draw, names = np.random.default_rng(0), [f"network{number}" for number in range(120)]
    shares, factors = draw.dirichlet(np.full(len(TERMS), 0.4), 120), np.exp(draw.normal(-0.7, 0.4, len(TERMS)))
    rows = pd.DataFrame(shares, columns=TERMS).assign(network=names, family=names, ratio=shares @ factors, usable=True)
    fitted = gains.fit(rows)
    assert [fitted.rates[name] for name in TERMS] == pytest.approx(factors, rel=0.1)
    predicted = gains.left_out(rows)
    scores = score_gains(predicted)
    assert scores["mape"] < 5 < scores["constant_mape"]
    assert scores["sign"] > 95
    with refused("four networks or more, not from 3"):
        gains.fit(rows.head(3))


def test_cases_are_paired_with_the_usual_way_and_unusable_ones_are_marked():
    columns = ["network", "dtype", "channels_last", "latency_ms", "verdict"]
    cases = [("a", "fp32", False, 4.0, "stable"), ("a", "fp32", True, 2.0, "stable"), ("a", "bf16", False, 1.0, "stable"),
             ("b", "fp32", False, 4.0, "stable"), ("b", "bf16", False, 4.0, "unusable"), ("c", "bf16", False, 4.0, "stable")]
    table = pd.DataFrame(cases, columns=columns).assign(mode="infer", batch_size=1, status="ok", compiled=False)
    pairs = gain_training.pairs(pd.concat([table, table.assign(latency_ms=9.0, compiled=True)], ignore_index=True))
    assert pairs[["network", "dtype", "layout", "ratio", "usable"]].to_numpy().tolist() == [
        ["a", "fp32", "channels_last", 0.5, True], ["a", "bf16", "contiguous", 0.25, True],
        ["b", "bf16", "contiguous", 1.0, False]]


@pytest.mark.slow
def test_what_ships_was_learned_from_the_committed_networks_and_tells_their_gains():
    shipped, path = gains.shipped(), gain_training.campaign()
    pairs = gain_training.pairs(store.read(path, "networks")).query("usable")
    assert shipped.machine == path.parents[2].name
    assert {(condition.mode, condition.dtype, condition.layout): gain.networks for condition, gain in shipped.ways.items()} == \
        pairs.groupby(["mode", "dtype", "layout"])["network"].nunique().to_dict()


def test_scores_beat_a_constant_gain_in_every_way_of_inference_and_training():
    for gain in gains.shipped().ways.values():
        assert gain.scores["mape"] < gain.scores["constant_mape"]
        assert 80 <= gain.scores["cover"] <= 100


@pytest.fixture
def same_cpu(monkeypatch):
    """Have this machine compute bf16 by the instructions of the networks that were measured."""
    monkeypatch.setattr(machine, "instructions", lambda dtype: gains.shipped().bf16_instructions)


@pytest.fixture(scope="module")
def squeezenet():
    """Give the answer of the CPU for a network."""
    return Answer(CapturedQuery(RunConfig("squeezenet1_1", 8)), registry.for_devices(["cpu"], "fp32", shipped=True)[0])


def test_bf16_is_refused_on_another_cpu_by_name(squeezenet, monkeypatch):
    network, model = squeezenet.work, squeezenet.predictor.model
    monkeypatch.setattr(machine, "instructions", lambda dtype: ())
    with refused("amx_bf16, avx512_bf16, and this one has neither"):
        gains.answer(network, model, "bf16", "contiguous")
    by_name = {one.what: one for one in changes(squeezenet)}
    assert np.isnan(by_name["bf16 (autocast)"].predicted_gain)
    assert by_name["bf16 (autocast)"].why.startswith("not predicted: networks were measured in bf16 on a CPU with amx_bf16")
    assert by_name["channels_last"].predicted_gain > 1.3
    assert "cpu" not in [one.device for one in advise.for_networks([], "bf16")]
    with refused("no bf16 model of a device 'cpu'"):
        advise.for_networks(["cpu"], "bf16")


@pytest.mark.slow
def test_the_cpu_answers_in_channels_last_and_bf16_by_what_they_gain(same_cpu):
    usual, gains = answered("cpu", "squeezenet1_1", 8, "fp32"), {}
    for how in (("fp32", "channels_last"), ("bf16", "contiguous"), ("bf16", "channels_last")):
        advice = advised("cpu", "squeezenet1_1", 8, how[0], layout=how[1])
        answer, gains[how] = advice.table.iloc[0], advice.answers[0].gain(*how).gain
        assert answer["predicted_ms"] == pytest.approx(usual["predicted_ms"] / gains[how])
        assert math.log(answer["high_ms"] / answer["predicted_ms"]) > math.log(usual["high_ms"] / usual["predicted_ms"])
        assert f"{' '.join(how)} gains {gains[how]:.2f}" in answer["held_out"]
        if how == ("bf16", "contiguous"):
            layout = change(advice, "channels_last")
    assert layout.predicted_gain == pytest.approx(gains["bf16", "channels_last"] / gains["bf16", "contiguous"])


def test_libraries_limited_to_older_instructions_have_none_of_bf16(monkeypatch):
    monkeypatch.setattr(machine, "_proc_cpuinfo", lambda: {"flags": "avx2 amx_bf16 avx512_bf16"})
    for name in machine._INSTRUCTION_SETS.values():
        monkeypatch.delenv(name, raising=False)
    assert machine.instructions("bf16") == ("amx_bf16", "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine.instructions("bf16") == ()


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "cpu-x.json"
    whole = json.loads(next(gains.FOLDER.glob("*.json")).read_text())
    whole["ways"][0]["rates"].pop("calls")
    path.write_text(json.dumps(whole))
    with refused("is no file of gains, or is damaged.*--train gains"):
        gains.Gains.load(path)
