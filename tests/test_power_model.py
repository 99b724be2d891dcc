"""Power of GEMM kernels: published rows, a model of them within idle and the limit, what a network's GEMMs take."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths, store
from lib.cli.main import main
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.measure.published import power
from lib.predict.advice.advise import advise
from lib.predict.advice.query import Query
from lib.predict.evaluation import models_at_hand
from lib.predict.operators.features_gpu import Chip
from lib.predict.power import model, training
from lib.predict.power.features import OPS
from lib.predict.power.kinds import GEMM
from lib.predict.power.model import PowerModel

CHIP = Chip.of(load_devices()["h200-sxm"], "bf16")
FILE = model.path_of("h200-sxm", "bf16")


def perf(folder, framework="vllm", version="0.22.0", **columns):
    path = folder / "h200_sxm" / "gemm" / framework / version / "gemm_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = {"gemm_dtype": ["bfloat16", "bfloat16", "fp8_block"], "m": 64, "n": 128, "k": 256, "latency": [2.0, 0.019, 1.0],
             "power": [600.0, 130.0, 500.0], "power_limit": 700.0, **columns}
    pd.DataFrame({name: value for name, value in frame.items() if value is not None}).to_parquet(path)
    return path


def gemms(count=1200, seed=0):
    """Return rows of a ``power`` table whose watts are known: idle, and what tensor cores and memory take as they are used."""
    draw = np.random.default_rng(seed)
    m, n, k = (2.0 ** draw.integers(8, 15, count) for _ in range(3))
    flops, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n)
    latency_ms = (np.maximum(flops / CHIP.flops_per_ms, moved / CHIP.bytes_per_ms) + 0.003) / draw.uniform(0.5, 0.9, count)
    watts = 120 + 400 * flops / CHIP.flops_per_ms / latency_ms + 250 * moved / CHIP.bytes_per_ms / latency_ms
    sizes = {name: values.astype(int) for name, values in (("gemm_m", m), ("gemm_k", k), ("gemm_n", n))}
    return pd.DataFrame({"op": "linear", **sizes, "dtype": "bf16", "latency_ms": latency_ms, "flops": flops,
                         "power_w": np.minimum(watts, 700.0), "limit_w": 700.0,
                         "window": np.where(latency_ms >= power.SHORT_MS, "long", "short"), "status": "ok",
                         "reason": "", "hardware_id": "published:h200-sxm", "software_id": "made here"})


def test_power_is_imported_with_short_windows_marked(tmp_path, monkeypatch):
    perf(tmp_path, power=[600.0, 130.0, 900.0])
    perf(tmp_path, version="0.9.0", power=[1.0, 1.0, 1.0])
    perf(tmp_path, "trtllm", "1.0.0", power=None, power_limit=None)
    table = power.read(tmp_path)["h200-sxm"]
    assert list(table["power_w"].fillna(0)) == [600.0, 130.0, 0.0]
    assert list(table["window"]) == ["long", "short", "long"]
    assert list(table["status"]) == ["ok", "ok", "failed"]
    assert list(table["dtype"]) == ["bf16", "bf16", "fp8_block"]
    assert table["flops"].iloc[0] == 2 * 64 * 128 * 256
    monkeypatch.setattr(paths, "IMPORTED", tmp_path / "imported")
    for _ in range(2):
        path, _ = power.bring_in(tmp_path)["h200-sxm"]
    assert store.read(path, "power").equals(store.validate(table, "power", "here"))
    assert store.read_json(path.with_name("power.meta.json"))["short_windows"] == 1
    assert main(["import", "aiconfigurator", str(tmp_path)]) == 0
    with pytest.raises(InputError, match="trained on 500 bf16 rows or more of long windows, there are 1"):
        training.usable(training.power_table("h200-sxm"), CHIP)


def test_a_folder_without_power_gives_none(tmp_path, monkeypatch):
    perf(tmp_path, power=None)
    assert power.read(tmp_path) == {}
    monkeypatch.setattr(paths, "IMPORTED", tmp_path / "imported")
    with pytest.raises(InputError, match="no power of h200-sxm was imported; run: python -m lib import aiconfigurator"):
        training.power_table("h200-sxm")


@pytest.mark.parametrize(("columns", "what"), [
    ({"power": ["much", "1", "2"]}, "row 1 below the header has 'much' as power"),
    ({"latency": ["1", "2", "slow"]}, "row 3 below the header has 'slow' as latency"),
    ({"m": [0, 1, 1]}, "as m: it is a whole number"), ({"k": None}, r"missing \(or doubled\) columns \[k\]")])
def test_damaged_power_is_refused_in_one_line(tmp_path, columns, what):
    perf(tmp_path, **columns)
    with pytest.raises(InputError, match=what) as error:
        power.read(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_known_physics_is_found_again_on_unseen_shapes(tmp_path):
    rows = training.usable(gemms(), CHIP)
    fitted, scores = training.fit("h200-sxm", rows, CHIP, quick=True)
    of_long = scores[scores["family"] == "long windows"].set_index("learner")
    assert of_long["mape"]["this model"] < 4 < of_long["mape"]["constant"]
    assert 86 <= of_long["cover"]["this model"] <= 94
    assert of_long["n"]["this model"] == (rows["window"] == "long").sum() == fitted.facts["rows"]
    assert scores.set_index(["family", "learner"])["n"]["short windows", "this model"] == fitted.facts["short_windows"] > 0
    path = fitted.save(tmp_path / "h200-sxm_bf16.json.gz")
    pd.testing.assert_frame_equal(PowerModel.load(path).predict(rows), fitted.predict(rows))


def test_no_row_of_a_fold_has_a_shape_of_its_training_rows():
    study = training.Study(training.usable(gemms(), CHIP), CHIP, 5)
    for train, test in study.folds(np.arange(len(study.rows)), 5):
        assert not set(study.groups.iloc[train]) & set(study.groups.iloc[test])
        inner, held = study.folds(train, 4)[0]
        assert not set(study.groups.iloc[inner]) & set(study.groups.iloc[held])
        assert not set(held) & set(test)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2**17), st.integers(1, 2**17), st.integers(1, 2**17), st.floats(1e-5, 1e6))
def test_answers_stay_between_the_least_power_and_the_limit(m, n, k, latency_ms):
    shipped = PowerModel.load(FILE)
    row = pd.DataFrame({"op": ["linear"], "layout": "nt", "gemm_m": m, "gemm_n": n, "gemm_k": k, "flops": 2.0 * m * n * k,
                        "bytes": 2.0 * (m * k + k * n + m * n), "latency_ms": latency_ms})
    answer = shipped.predict(row).iloc[0]
    assert shipped.facts["least_w"] <= answer["low_w"] <= answer["power_w"] <= answer["high_w"] <= shipped.facts["limit_w"]
    assert answer["out_of_range"] or latency_ms >= power.SHORT_MS


def test_the_model_that_ships_says_what_it_is_and_how_wrong():
    shipped = model.of_device("h200-sxm", "bf16")
    scores = store.read(FILE.with_name("h200-sxm_bf16_scores.csv"), "scores").set_index(["family", "learner"])
    own, trees = (scores.loc["long windows", name] for name in ("this model", "default trees"))
    assert {shipped.facts["licence"], shipped.facts["software_id"]} == {"Apache-2.0, ai-dynamo/aiconfigurator",
                                                                       "aiconfigurator vllm 0.22.0"}
    assert own["mape"] == pytest.approx(shipped.part.scores["mape"]) and own["mape"] < 0.9 * trees["mape"]
    assert own["median"] < 1.5 and 88 <= own["cover"] <= 92
    assert (own["n"], shipped.facts["short_windows"]) == (shipped.part.rows, scores.loc["short windows", "this model"]["n"])
    listed = models_at_hand.summary()
    assert listed[listed["part"] == GEMM.part]["MAPE %"].iloc[0] == own["mape"]
    assert model.of_device("t4", "fp32") is None


@pytest.mark.parametrize(("change", "words"), [
    (lambda content: content["facts"].pop("limit_w"), "least_w and limit_w are .*: they are watts"),
    (lambda content: content["facts"].update(least_w="0"), "least_w and limit_w are .*: they are watts"),
    (lambda content: content["facts"].update(least_w=800.0), "the first below the second"),
    (lambda content: content.update(chip=None), "is no power model: it has other parts"),
    (lambda content: content["parts"].update({"gemm forward": content["parts"].pop(GEMM.part)}), "is no power model"),
    (lambda content: content["parts"][GEMM.part]["regressor"]["terms"].reverse(), "other terms or features"),
    (lambda content: content.update(device="t4"), "holds a power model of t4, bf16: not what its name says"),
    (lambda content: content.update(schema=3), "schema 3, this program reads"),
    (lambda content: content["parts"][GEMM.part].update(halves=[-1.0]), "halves")])
def test_a_damaged_power_model_is_one_line(tmp_path, monkeypatch, change, words):
    content = json.loads(gzip.decompress(FILE.read_bytes()))
    change(content)
    monkeypatch.setattr(model, "SHIPPED", tmp_path)
    (tmp_path / FILE.name).write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=1))
    with pytest.raises(InputError, match=words) as error:
        model.of_device("h200-sxm", "bf16")
    assert "\n" not in str(error.value)
    table = models_at_hand.summary()
    assert table[table["part"] == models_at_hand.UNUSABLE]["device"].tolist() == ["h200-sxm"]


NET = """
from torch import nn
def products():
    return nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.Linear(4096, 4096, bias=False))
def none():
    return nn.ReLU()
"""


def test_joules_of_a_network_of_gemms_are_power_times_time(tmp_path, monkeypatch, capsys):
    (tmp_path / "powered.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    query = Query("powered:products", 1, "1x2048x4096", dtype="bf16")
    answer = advise(query, ["h200-sxm", "l40s"], crossovers=False)
    rows = answer.table.set_index("device")
    own = rows.loc["h200-sxm"]
    operators = answer.predictors[0].estimate(answer.captured.work(device_type="cuda")).operators
    products, spent_ms = operators[operators["op"].isin(OPS)], operators["predicted_ms"] * operators["calls"]
    watts = PowerModel.load(FILE).predict(products.assign(latency_ms=products["predicted_ms"]))["power_w"]
    expected = float((watts * spent_ms[products.index]).sum()) / 1e3
    assert set(operators["op"]) - set(products["op"]) == {"copy"}, "beside its GEMMs autocast's casts alone"
    assert own["energy_j"] == pytest.approx(expected)
    assert own["energy_low_j"] < own["energy_j"] < own["energy_high_j"]
    assert own["energy_share"] == pytest.approx(spent_ms[products.index].sum() / spent_ms.sum())
    assert own["energy_source"].startswith("modelled")
    assert rows.loc["l40s", ["energy_j", "energy_source"]].isna().all()
    none = advise(Query("powered:none", 4, "3x64x64", dtype="bf16"), ["h200-sxm"], crossovers=False).table
    assert none["energy_j"].isna().all() and none["energy_source"].isna().all()
    arguments = "advise powered:products --input 1x2048x4096 --batch-size 1 --dtype bf16 --device h200-sxm".split()
    assert main([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["energy_j"] == pytest.approx(expected) and row["energy_source"] == own["energy_source"]
    assert main(arguments) == 0
    assert "GEMMs' J/image: the power of linear, matmul and bmm kernels" in capsys.readouterr().out
