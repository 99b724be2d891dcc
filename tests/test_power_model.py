"""The power model of GEMMs: tables of power, known physics, answers within idle and the limit, joules of networks."""

import gzip
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib import paths, store
from lib.config.definitions import load_devices
from lib.predict.evaluation import models_at_hand
from lib.predict.operators.features_gpu import Chip
from lib.predict.power import model, training
from lib.predict.power.model import OPS, PowerModel
from lib.predict.published import aiconfigurator
from tests import advice_on, output_of, refused, test_published

FILE, SHORT_MS = model.path_of("h200-sxm", "bf16"), aiconfigurator.SHORT_MS
ROOT = "aiconfigurator_core/systems/data"
CHIP = Chip.of(load_devices()["h200-sxm"], "bf16")


def perf(folder, framework="vllm", version="0.22.0", **columns):
    test_published.perf(folder, version, framework, **{
        "gemm_dtype": ["bfloat16", "bfloat16", "fp8_block"], "latency": [2.0, 0.019, 1.0], "power": [600.0, 130.0, 500.0],
        "power_limit": 700.0, **columns})


def packed(folder, target, *others):
    """Write a wheel of the folder's tables, and of other names."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.parquet")):
            archive.write(path, f"{ROOT}/{path.relative_to(folder)}")
        for name in others:
            archive.writestr(name, "x")
    return target


def gemms(count=1200, seed=0, shortest=8):
    """Return rows of a table of power of known watts: idle, and what tensor cores and memory take as they are used."""
    draw = np.random.default_rng(seed)
    m, n, k = 2 ** draw.integers(shortest, 15, (3, count))
    flops, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    compute_ms, moved_ms = flops / CHIP.flops_per_ms, moved / CHIP.bytes_per_ms
    latency_ms = (np.maximum(compute_ms, moved_ms) + 0.003) / draw.uniform(0.5, 0.9, count)
    watts = (200 + (400 * compute_ms + 250 * moved_ms) / latency_ms) * draw.normal(1, 0.02, count)
    return pd.DataFrame({"op": "linear", "gemm_m": m, "gemm_k": k, "gemm_n": n, "dtype": "bf16", "flops": flops, "bytes": moved,
                         "latency_ms": latency_ms, "power_w": watts, "limit_w": 1000.0, "status": "ok", "reason": "",
                         "software_id": "made here", "window": np.where(latency_ms >= SHORT_MS, "long", "short"),
                         "hardware_id": "published:h200-sxm"})


@pytest.mark.slow
def test_a_wheel_and_its_folder_give_the_same_tables(home):
    data = home / "site" / ROOT
    perf(data)
    perf(data, "trtllm", "1.0.0", power=None, power_limit=None)
    file = packed(data, home / "aiconfigurator_core-0.12.0.whl",
                  f"{ROOT}/h200_sxm/gemm/../../evil_perf.parquet", f"{ROOT}/h200_sxm/notes.txt")
    of_wheel = aiconfigurator.gemm_power(file)["h200-sxm"]
    with aiconfigurator.data_folder(file) as folder:
        assert len([path for path in folder.rglob("*") if path.is_file()]) == 2
    assert not folder.exists()
    for path in (file, home / "site", data):
        text = output_of("import", "aiconfigurator", path)
        imported = paths.IMPORTED / "h200-sxm/power/aiconfigurator/power.parquet"
        assert store.read(imported, "power").equals(of_wheel)
    assert f"{imported}: 3 rows" in text


def test_power_is_imported_with_short_windows_marked(home):
    perf(home, power=None)
    assert aiconfigurator.gemm_power(home) == {}
    with refused("no power of h200-sxm was imported; run: python -m lib import aiconfigurator"):
        training.power_table("h200-sxm")
    perf(home, power=[600.0, 130.0, 900.0])
    perf(home, version="0.9.0", power=[1.0, 1.0, 1.0])
    perf(home, "trtllm", "1.0.0", power=None, power_limit=None)
    table = aiconfigurator.gemm_power(home)["h200-sxm"]
    assert table[["power_w", "window", "status", "dtype"]].fillna(0).to_numpy().tolist() == [
        [600.0, "long", "ok", "bf16"], [130.0, "short", "ok", "bf16"], [0, "long", "failed", "fp8_block"]]
    assert table["flops"].iloc[0] == 2 * 64 * 128 * 256
    output_of("import", "aiconfigurator", home)
    imported = training.power_table("h200-sxm")
    assert imported.equals(store.validate(table, "power", "here"))
    with refused("trained on 500 bf16 rows or more of long windows, there are 1"):
        training.usable(imported, CHIP)


@pytest.mark.slow
def test_known_physics_is_found_again_on_unseen_groups(tmp_path):
    rows = training.usable(gemms(), CHIP)
    fitted, scores = training.fit("h200-sxm", rows, CHIP, quick=True)
    of = scores.set_index(["family", "learner"])
    own = of.loc["long windows", "this model"]
    assert own["mape"] < 4 < of.loc[("long windows", "constant"), "mape"] and 86 <= own["cover"] <= 94
    assert own["n"] == (rows["window"] == "long").sum() == fitted.facts["rows"]
    loaded = PowerModel.load(fitted.save(tmp_path / "h200-sxm_bf16.json.gz"))
    pd.testing.assert_frame_equal(loaded.predict(rows), fitted.predict(rows))


def test_no_fold_splits_a_group():
    rows = training.usable(gemms(), CHIP)
    study = training.Study(rows, CHIP)
    for train, test in study.folds(np.arange(len(rows)), 5):
        for taught, held in ((train, test), study.folds(train, 4)[0]):
            assert not set(study.groups.iloc[taught]) & set(study.groups.iloc[held])


@given(st.integers(0, 2**32 - 1), st.floats(1e-5, 1e6))
def test_answers_stay_between_the_least_power_and_the_limit(seed, latency_ms):
    shipped = model.of_device("h200-sxm", "bf16")
    answer = shipped.predict(gemms(1, seed, shortest=0).assign(latency_ms=latency_ms)).iloc[0]
    assert shipped.facts["least_w"] <= answer["low_w"] <= answer["power_w"] <= answer["high_w"] <= shipped.facts["limit_w"]
    assert answer["out_of_range"] or latency_ms >= SHORT_MS


def test_the_model_that_ships_says_what_it_is_and_how_wrong():
    shipped = model.of_device("h200-sxm", "bf16")
    scores = store.read(FILE.with_name("h200-sxm_bf16_scores.csv"), "scores").set_index(["family", "learner"])
    own, trees = (scores.loc[("long windows", name)] for name in ("this model", "default trees"))
    assert own["mape"] < 0.9 * trees["mape"]
    assert 88 <= own["cover"] <= 92 and own["n"] == shipped.part.rows
    assert (shipped.facts["licence"], shipped.facts["software_id"]) == ("Apache-2.0, ai-dynamo/aiconfigurator",
                                                                       "aiconfigurator vllm 0.22.0")
    listed = models_at_hand.summary()
    listed = listed[listed["part"] == model.PART].iloc[0]
    assert listed["device"] == "h200-sxm" and listed["MAPE %"] == own["mape"]
    assert model.of_device("h200-sxm", "fp32") is None and FILE.stat().st_size < 300_000


@pytest.mark.parametrize("change, words", [
    (lambda content: content["facts"].pop("limit_w"), "facts.limit_w is missing"),
    (lambda content: content["facts"].update(least_w=800.0), "least_w is not below limit_w"),
    (lambda content: content.update(parts={"gemm forward": content["parts"].pop(model.PART)}), "it has other parts than"),
    (lambda content: content.update(device="t4"), "holds a power model of t4, bf16: not what its name says")])
def test_a_damaged_power_model_is_one_line(tmp_path, monkeypatch, change, words):
    content = json.loads(gzip.decompress(FILE.read_bytes()))
    change(content)
    monkeypatch.setattr(model, "SHIPPED", tmp_path)
    (tmp_path / FILE.name).write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=1))
    with refused(words):
        model.of_device("h200-sxm", "bf16")
    listed = models_at_hand.summary()
    assert listed.loc[listed["part"] == models_at_hand.UNUSABLE, "device"].tolist() == ["h200-sxm"]


def products():
    return nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.Linear(4096, 4096, bias=False))


def test_joules_of_a_network_of_gemms_are_power_times_time():
    network = f"{__name__}:products"
    answer = advice_on(["h200-sxm", "l40s"], network, 1, "1x2048x4096", dtype="bf16")
    rows = answer.table.set_index("device")
    own = rows.loc["h200-sxm"]
    operators = answer.answers[0].passes.operators
    linear, spent_ms = operators[operators["op"].isin(OPS)], operators["predicted_ms"] * operators["calls"]
    watts = PowerModel.load(FILE).predict(linear.assign(latency_ms=linear["predicted_ms"]))["power_w"]
    expected = float((watts * spent_ms[linear.index]).sum()) / 1e3
    assert set(operators["op"]) - set(linear["op"]) == {"copy"}, "beside its GEMMs autocast's casts alone"
    assert own["energy_j"] == pytest.approx(expected)
    assert own["energy_low_j"] < own["energy_j"] < own["energy_high_j"]
    assert rows.loc["l40s", ["energy_j", "energy_source"]].isna().all()
    words = ["advise", network, *"--input-size 1x2048x4096 --batch-size 1 --dtype bf16 --device h200-sxm".split()]
    assert "GEMMs' J/image: the power of linear, matmul and bmm kernels" in output_of(*words, "--explain")
    (row,) = json.loads(output_of(*words, "--json"))
    assert row["energy_j"] == pytest.approx(expected) and row["energy_source"] == own["energy_source"]
