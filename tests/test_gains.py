"""What another layout or element type gains on a CPU: laws of the model, known answers, and what is refused."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from lib import store
from lib.errors import InputError
from lib.measure import archive, machine
from lib.predict import registry
from lib.predict.advice import advise
from lib.predict.advice.query import CapturedQuery, Query
from lib.predict.advice.suggestions import changes
from lib.predict.gains import answers, model, model_file, training
from lib.predict.gains.model import TERMS


def _rows(count: int = 40, noise: float = 0.0) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(0)
    shares = draw.dirichlet(np.full(len(TERMS), 0.4), count)
    factors = np.exp(draw.normal(-0.7, 0.4, len(TERMS)))
    ratio = shares @ factors * np.exp(draw.normal(0, noise, count))
    names = [f"network{number}" for number in range(count)]
    terms = dict(zip(TERMS, shares.T, strict=True))
    return pd.DataFrame({"network": names, "family": names, "ratio": ratio, "usable": True, **terms}), factors


def test_factors_of_kinds_are_found_from_sums_of_networks():
    rows, factors = _rows(120)
    fitted = model.fit(rows)
    assert [fitted.ratios[name] for name in TERMS] == pytest.approx(factors, rel=0.1)
    scores = model.scores(model.held_out(rows))
    assert scores["mape"] < 5 < scores["constant_mape"]
    assert scores["sign_large"] > 95


def test_a_gain_is_one_by_the_ratio_and_lies_within_its_interval():
    fitted = model.fit(_rows()[0])
    terms = np.zeros(len(TERMS))
    terms[0] = 1.0
    gain, low, high = fitted.of(terms)
    assert gain == pytest.approx(1 / fitted.ratios[TERMS[0]])
    assert low < gain < high


def test_fewer_than_four_networks_teach_no_gain():
    with pytest.raises(InputError, match="four networks or more, not from 3"):
        model.fit(_rows(3)[0])


def test_cases_are_paired_with_the_usual_way_and_unusable_ones_are_marked():
    base = {"network": "a", "mode": "infer", "batch_size": 1, "dtype": "fp32", "channels_last": False, "status": "ok",
            "verdict": "stable", "latency_ms": 4.0}
    table = pd.DataFrame([base, {**base, "channels_last": True, "latency_ms": 2.0},
                          {**base, "dtype": "bf16", "latency_ms": 1.0},
                          {**base, "network": "b"}, {**base, "network": "b", "dtype": "bf16", "verdict": "unusable"},
                          {**base, "network": "c", "dtype": "bf16"}])
    pairs = training.pairs(table)
    assert pairs[["network", "dtype", "layout", "ratio", "usable"]].to_numpy().tolist() == [
        ["a", "fp32", "channels_last", 0.5, True], ["a", "bf16", "contiguous", 0.25, True],
        ["b", "bf16", "contiguous", 1.0, False]]


def test_unusable_rows_teach_nothing_and_are_scored_apart():
    rows = _rows()[0].assign(mode="infer", dtype="bf16", layout="contiguous")
    spoiled = pd.concat([rows, rows.head(3).assign(ratio=50.0, usable=False)], ignore_index=True)
    ((_, clean),), ((_, gain),) = training.learned(rows), training.learned(spoiled)
    assert gain.ratios == clean.ratios
    assert (gain.scores["n"], gain.scores["every_row_n"]) == (40, 43)
    assert gain.scores["every_row_mape"] > 2 * gain.scores["mape"]


def test_noise_is_how_far_the_ratios_of_two_visits_differ(tmp_path):
    lines = training.campaign().with_name("visits.jsonl").read_text().splitlines()
    visit = next(one for one in map(json.loads, lines) if one["network"] == "timm:lcnet_050")
    both = [result for result in visit["results"] if (result["case"]["mode"], result["case"]["batch_size"]) == ("infer", 1)
            and not (result["case"]["channels_last"] and result["case"]["dtype"] == "bf16")]
    again = json.loads(json.dumps({**visit, "round": 1, "results": both}))
    for result in again["results"]:
        factor = 1.2 if result["case"]["dtype"] == "bf16" else 1.0
        result["samples_ms"] = [ms * factor for ms in result["samples_ms"]]
    path = tmp_path / "visits.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ({**visit, "results": both}, again)))
    noise = training.noise(path)
    assert noise["infer", "bf16", "contiguous"] == pytest.approx(100 * np.log(1.2))
    assert noise["infer", "fp32", "channels_last"] == pytest.approx(0)


def test_what_ships_was_learned_from_the_committed_networks_and_tells_their_gains():
    shipped, path = model_file.shipped(), training.campaign()
    pairs = training.pairs(store.read(path, "networks")).query("usable")
    assert shipped.machine == path.parents[2].name
    assert {(way.mode, way.dtype, way.layout): gain.networks for way, gain in shipped.ways.items()} == \
        pairs.groupby(["mode", "dtype", "layout"])["network"].nunique().to_dict()
    some = pairs[pairs["network"].isin(["mobilenet_v3_small", "squeezenet1_1", "timm:lcnet_050"])
                 & (pairs["mode"] == "infer")].reset_index(drop=True)
    rows = training.with_terms(some)
    inside = [low <= 1 / row["ratio"] <= high for row in rows.to_dict("records")
              for way in [model.Way(row["mode"], row["dtype"], row["layout"])]
              for _, low, high in [shipped.ways[way].of(np.array([row[name] for name in TERMS], float))]]
    assert len(inside) >= 12
    assert np.mean(inside) >= 0.75


def test_scores_beat_a_constant_gain_in_every_way_of_inference_and_training():
    for gain in model_file.shipped().ways.values():
        assert gain.scores["mape"] < gain.scores["constant_mape"]
        assert 80 <= gain.scores["coverage"] <= 100


def _captured(**how) -> tuple[CapturedQuery, registry.Predictor]:
    captured = CapturedQuery(Query("squeezenet1_1", 8, **how))
    return captured, registry.for_devices(["cpu"], "fp32", shipped=True)[0]


def test_bf16_is_answered_on_a_cpu_with_the_same_instructions_alone(monkeypatch):
    captured, predictor = _captured()
    monkeypatch.setattr(machine, "bf16_instructions", lambda: ())
    with pytest.raises(InputError, match="amx_bf16, avx512_bf16, and this one has neither"):
        answers.answer(captured.work(), predictor.model, "bf16", "contiguous")
    by_name = {change.what: change for change in changes(captured, predictor)}
    assert np.isnan(by_name["bf16 (autocast)"].predicted_gain)
    assert by_name["bf16 (autocast)"].why.startswith("not predicted: networks were measured in bf16 on a CPU with amx_bf16")
    assert by_name["channels_last"].predicted_gain > 1.3
    monkeypatch.setattr(machine, "bf16_instructions", lambda: model_file.shipped().bf16_instructions)
    by_name = {change.what: change for change in changes(captured, predictor)}
    assert by_name["bf16 (autocast)"].predicted_gain > 1.1
    assert "of families left out the factor errs by" in by_name["bf16 (autocast)"].why


def test_the_cpu_answers_in_channels_last_and_bf16_by_what_they_gain(monkeypatch):
    monkeypatch.setattr(machine, "bf16_instructions", lambda: model_file.shipped().bf16_instructions)
    usual = advise.advise(Query("squeezenet1_1", 8), ["cpu"], crossovers=False).table.iloc[0]
    for dtype, layout in (("fp32", "channels_last"), ("bf16", "contiguous"), ("bf16", "channels_last")):
        advice = advise.advise(Query("squeezenet1_1", 8, dtype=dtype, layout=layout), ["cpu"], crossovers=False)
        answer, learned = advice.table.iloc[0], advice.captured.gain(advice.predictors[0], dtype, layout)
        assert answer["predicted_ms"] == pytest.approx(usual["predicted_ms"] / learned.gain)
        assert math.log(answer["high_ms"] / answer["predicted_ms"]) > math.log(usual["high_ms"] / usual["predicted_ms"])
        assert f"{dtype} {layout} gains {learned.gain:.2f}" in answer["held_out"]
    step = advise.advise(Query("W1", 8, mode="train", layout="channels_last"), ["cpu"], crossovers=False).table.iloc[0]
    assert step["predicted_ms"] > step["forward_ms"] + step["backward_ms"]


def test_a_cpu_that_computes_bf16_otherwise_is_left_out_and_refused_by_name(monkeypatch):
    monkeypatch.setattr(machine, "bf16_instructions", lambda: ())
    assert "cpu" not in [one.device for one in advise.for_networks([], "bf16")]
    with pytest.raises(InputError, match="no bf16 model of a device 'cpu'"):
        advise.for_networks(["cpu"], "bf16")


def test_a_layout_gains_over_the_element_type_that_the_query_has(monkeypatch):
    monkeypatch.setattr(machine, "bf16_instructions", lambda: model_file.shipped().bf16_instructions)
    captured = CapturedQuery(Query("squeezenet1_1", 8, dtype="bf16"))
    (predictor,) = advise.for_networks(["cpu"], "bf16", shipped=True)
    change = next(one for one in changes(captured, predictor) if one.what == "channels_last")
    both, bf16 = (captured.gain(predictor, "bf16", layout).gain for layout in ("channels_last", "contiguous"))
    assert change.predicted_gain == pytest.approx(both / bf16)


def test_a_way_in_which_nothing_was_measured_is_refused():
    captured, predictor = _captured()
    with pytest.raises(InputError, match="no networks were measured on a CPU in fp16 contiguous; there are: bf16"):
        answers.answer(captured.work(), predictor.model, "fp16", "contiguous")


def test_libraries_limited_to_older_instructions_have_none_of_bf16(monkeypatch):
    monkeypatch.setattr(machine, "_proc_cpuinfo", lambda: {"flags": "avx2 amx_bf16 avx512_bf16"})
    for name in machine._INSTRUCTION_SETS.values():
        monkeypatch.delenv(name, raising=False)
    assert machine.bf16_instructions() == ("amx_bf16", "avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine.bf16_instructions() == ()


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "cpu-x.json"
    whole = json.loads(next(model_file.FOLDER.glob("*.json")).read_text())
    whole["ways"][0]["ratios"].pop("calls")
    path.write_text(json.dumps(whole))
    with pytest.raises(InputError, match="holds no gains, or is damaged.*--train gains") as error:
        model_file.Gains.load(path)
    assert "\n" not in str(error.value)


def test_networks_of_other_layouts_are_not_mixed_with_the_usual_ones():
    folder = training.campaign().parents[2]
    rows = archive.networks(folder)
    assert len(rows)
    assert not rows["channels_last"].any()
