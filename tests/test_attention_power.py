"""Power of attention kernels: published tables from a folder or a wheel, counted work, a model scored on unseen groups."""

import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths, store
from lib.cli.main import main
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.measure.published import attention_power, wheel
from lib.predict.evaluation import models_at_hand
from lib.predict.operators.features_gpu import Chip
from lib.predict.power import attention, model, training
from lib.predict.power.kinds import ATTENTION
from lib.predict.power.model import PowerModel
from lib.tables import columns

CHIP = Chip.of(load_devices()["b200"], "bf16")
ROOT = "aiconfigurator_core/systems/data"


def perf(folder, original="context", version="0.22.0", **changes):
    """Write a small table as the original has them: two rows, of the second of which the cache is in fp8."""
    frame = {"framework": "VLLM", "version": version, "device": "NVIDIA B200", "op_name": f"{original}_attention",
             "kernel_source": "vllm_flashinfer", "batch_size": [2, 4], "isl": [64, 128] if original == "context" else 1,
             "num_heads": [32, 8], "num_key_value_heads": [8, 8], "head_dim": [128, 64], "beam_width": 1,
             "attn_dtype": "bfloat16", "kv_cache_dtype": ["bfloat16", "fp8"],
             "step": 0 if original == "context" else [63, 4095], "window_size": [0, 16], "latency": [0.5, 0.1],
             "power": [800.0, 400.0], "power_limit": 1000.0, **changes}
    path = folder / "b200_sxm" / "attention" / "vllm" / version / f"{original}_attention_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({name: values for name, values in frame.items() if values is not None}, index=range(2)).to_parquet(path)
    return path


def packed(folder, target, more=()):
    """Write a wheel of the folder's tables."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.parquet")):
            archive.write(path, f"{ROOT}/{path.relative_to(folder)}")
        for name, content in more:
            archive.writestr(name, content)
    return target


def gemms(folder):
    path = folder / "b200_sxm" / "gemm" / "trtllm" / "1.0.0" / "gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    pd.DataFrame({"gemm_dtype": ["bfloat16"], "m": 64, "n": 128, "k": 256, "latency": [2.0]}).to_parquet(path)


def kernels(count=1500, seed=0):
    """Return rows of ``attention_power`` of known watts: idle, and what tensor cores and memory take as they are used."""
    draw = np.random.default_rng(seed)
    prefill = draw.random(count) < 0.5
    kv_heads = 2 ** draw.integers(0, 4, count)
    length = 2 ** draw.integers(11, 17, count)
    rows = pd.DataFrame({"op": "attention", "phase": np.where(prefill, "prefill", "decode"),
                         "batch": 2 ** draw.integers(0, 9, count), "heads": kv_heads * 2 ** draw.integers(0, 4, count),
                         "kv_heads": kv_heads, "head_dim": draw.choice([64, 128], count), "q_len": np.where(prefill, length, 1),
                         "kv_len": length, "sliding_window": 0, "dtype": "bf16",
                         "kv_dtype": draw.choice(["bf16", "fp8"], count), "kernel": "vllm_flashinfer"})
    rows = rows.assign(**attention_power.work(rows))
    compute, moved = rows["flops"] / CHIP.flops_per_ms, rows["bytes"] / CHIP.bytes_per_ms
    latency_ms = (np.maximum(compute, moved) + 0.01) / draw.uniform(0.5, 0.9, count)
    watts = (200 + (500 * compute + 250 * moved) / latency_ms) * draw.normal(1, 0.02, count)
    return rows.assign(latency_ms=latency_ms, power_w=watts, limit_w=1000.0,
                       window=np.where(latency_ms >= attention_power.SHORT_MS, "long", "short"), status="ok", reason="",
                       hardware_id="published:b200", software_id="made here")[columns("attention_power")]


def test_columns_phases_dtypes_and_short_windows_of_an_import(tmp_path):
    perf(tmp_path)
    perf(tmp_path, "generation", power=[300.0, 1100.0])
    perf(tmp_path, version="0.24.0", power=None, power_limit=None)
    perf(tmp_path, version="0.9.0", power=[1.0, 1.0])
    table = attention_power.read(tmp_path)["b200"]
    assert list(table["phase"]) == ["prefill", "prefill", "decode", "decode"]
    assert list(table["q_len"]) == [64, 128, 1, 1] and list(table["kv_len"]) == [64, 128, 64, 4096]
    assert list(table["dtype"]) == ["bf16"] * 4 and list(table["kv_dtype"]) == ["bf16", "fp8"] * 2
    assert list(table["window"]) == ["long", "short"] * 2
    assert list(table["power_w"].fillna(0)) == [800.0, 400.0, 300.0, 0.0]
    assert list(table["status"]) == ["ok", "ok", "ok", "failed"]
    assert set(table["software_id"]) == {"aiconfigurator vllm 0.22.0"}
    assert store.validate(table, "attention_power", "here").equals(table)


def test_work_of_known_shapes(tmp_path):
    perf(tmp_path)
    perf(tmp_path, "generation")
    first, windowed, decode, last = attention_power.read(tmp_path)["b200"].to_dict("records")
    assert first["flops"] == 4 * 2 * 32 * 128 * (64 * 65 / 2)
    assert first["bytes"] == 2 * 64 * 128 * 2 * (2 * 32 + 2 * 8)
    assert windowed["flops"] == 4 * 4 * 8 * 64 * (16 * 17 / 2 + 112 * 16)
    assert decode["flops"] == 4 * 2 * 32 * 128 * 64
    assert decode["bytes"] == 2 * 128 * 2 * (2 * 32 + 2 * 64 * 8)
    assert last["flops"] == 4 * 4 * 8 * 64 * 16
    assert last["bytes"] == 4 * 64 * (2 * 8 * 2 + 2 * 16 * 8 * 1)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 50))
def test_pairs_are_those_that_a_mask_has(q_len, before, sliding_window):
    kv_len = q_len + before
    query, key = np.arange(before, kv_len)[:, None], np.arange(kv_len)
    mask = (key <= query) & ((key > query - sliding_window) | (sliding_window == 0))
    assert attention_power.pairs(np.array([q_len]), np.array([kv_len]), np.array([sliding_window]))[0] == mask.sum()


@pytest.mark.parametrize(("changes", "words"), [
    ({"power": None}, r"missing \(or doubled\) columns \[power\]"), ({"colour": "red"}, r"unknown \[colour\]"),
    ({"power": ["much", "1"]}, "row 1 below the header has 'much' as power"),
    ({"batch_size": [1, 0]}, "row 2 .* as batch_size"),
    ({"window_size": [-1, 0]}, "as window_size: it is a whole number from 0"), ({"beam_width": 4}, "beams are not known here"),
    ({"num_key_value_heads": 3}, "as num_key_value_heads: it is a divisor of num_heads"),
    ({"kv_cache_dtype": "fp4"}, "has 'fp4' as kv_cache_dtype: it is one of"), ({"op_name": "mla"}, "it is context_attention")])
def test_damaged_tables_are_one_line(tmp_path, changes, words):
    perf(tmp_path, **changes)
    with pytest.raises(InputError, match=words) as error:
        attention_power.read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_wheel_and_its_folder_give_the_same_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "IMPORTED", tmp_path / "imported")
    data = tmp_path / "site" / ROOT
    perf(data)
    gemms(data)
    file = packed(data, tmp_path / "aiconfigurator_core-0.12.0.whl",
                  [(f"{ROOT}/b200_sxm/attention/vllm/../../../../evil_perf.parquet", "x"), (f"{ROOT}/b200_sxm/notes.txt", "x")])
    with wheel.data_folder(file) as folder:
        of_wheel = attention_power.read(folder)["b200"]
        assert len([path for path in folder.rglob("*") if path.is_file()]) == 2
    assert not folder.exists()
    for path in (file, tmp_path / "site", data):
        assert main(["import", "aiconfigurator", str(path)]) == 0
        imported = tmp_path / "imported/b200/power/aiconfigurator/attention_power.parquet"
        assert store.read(imported, "attention_power").equals(of_wheel)
    text = capsys.readouterr().out
    assert "b200: power of 2 attention kernels in" in text and "; 1 of them ran in windows too short for the sensor" in text
    assert "power of GEMMs: no file has the columns power and power_limit" in text
    assert store.read_json(imported.with_name("attention_power.meta.json"))["short_windows"] == 1


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.whl", b"no archive", "is no wheel or is damaged"), ("a.txt", b"x", "is neither a folder nor a wheel"),
    ("b.whl", None, "holds no aiconfigurator_core/systems/data/")])
def test_what_is_no_wheel_is_one_line(tmp_path, name, content, words):
    path = tmp_path / name
    if content is None:
        packed(tmp_path / "nothing", path, [("other/file.py", "x")])
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words) as error, wheel.data_folder(path):
        pass
    assert "\n" not in str(error.value)


def test_features_of_a_known_kernel(tmp_path):
    perf(tmp_path)
    table = attention_power.read(tmp_path)["b200"]
    terms, x = attention.frames(table, CHIP)
    assert (list(terms), list(x)) == attention.names(CHIP)
    first, row = x.iloc[0], table.iloc[0]
    assert first["compute_used"] == pytest.approx(row["flops"] / 2.25e12 / 0.5)
    assert first["memory_used"] == pytest.approx(row["bytes"] / 8e9 / 0.5)
    assert (first["shared"], first["all_heads"], first["reach"], first["narrow"]) == (2, 6, 6, 0)
    assert first["waves_64"] == pytest.approx(np.log2(64 / 148)) and first["unfilled_64"] == pytest.approx(148 / 64)
    assert (x.iloc[1]["reach"], x.iloc[1]["narrow"]) == (4, 1)
    assert np.isfinite(x).all(axis=None) and (terms >= 0).all(axis=None) and (terms <= 1).all(axis=None)


def test_no_fold_splits_heads_or_shapes_and_equal_work_is_known():
    rows = training.usable(kernels(), CHIP)
    for grouping in ATTENTION.groupings:
        study = training.Study(rows, CHIP, 5, ATTENTION, grouping)
        for train, test in study.folds(np.arange(len(rows)), 5):
            assert not set(study.groups.iloc[train]) & set(study.groups.iloc[test])
    one = rows.iloc[[0]].assign(batch=2, heads=8, kv_heads=4, window="long", power_w=500.0)
    other = one.assign(batch=4, heads=4, kv_heads=2, power_w=700.0)
    far = other.assign(latency_ms=2 * one["latency_ms"], power_w=900.0)
    study = training.Study(pd.concat([one, other, far], ignore_index=True), CHIP, 5, ATTENTION, "heads")
    np.testing.assert_array_equal(study.repeat(), [700.0, 500.0, np.nan])


@pytest.mark.slow
def test_known_physics_is_found_again_on_unseen_heads_and_shapes(tmp_path):
    rows = training.usable(kernels(2000), CHIP)
    fitted, scores = training.fit("b200", rows, CHIP, quick=True, kind=ATTENTION)
    of = scores.set_index(["family", "learner"])
    for grouping in ATTENTION.groupings:
        own = of.loc[(f"unseen {grouping}, long windows", "this model")]
        assert own["mape"] < 4 < of.loc[(f"unseen {grouping}, long windows", "constant"), "mape"]
        assert 85 <= own["cover"] <= 95 and own["n"] == fitted.facts["rows"]
    path = fitted.save(tmp_path / "b200_bf16.json.gz")
    assert PowerModel.load(path).kind is ATTENTION
    pd.testing.assert_frame_equal(PowerModel.load(path).predict(rows), fitted.predict(rows))


def test_the_model_that_ships_says_what_it_is_and_how_wrong():
    file = model.path_of("b200", "bf16", ATTENTION)
    shipped = model.of_device("b200", "bf16", ATTENTION)
    scores = store.read(file.with_name("b200_bf16_scores.csv"), "scores").set_index(["family", "learner"])
    for grouping in ATTENTION.groupings:
        family = f"unseen {grouping}, long windows"
        own, noise = (scores.loc[(family, name)] for name in ("this model", training.REPEAT))
        assert own["mape"] < 0.93 * scores.loc[(family, "default trees"), "mape"] and own["mape"] < noise["mape"]
        assert 88 <= own["cover"] <= 92 and own["n"] == shipped.part.rows
    assert shipped.facts["licence"] == "Apache-2.0, ai-dynamo/aiconfigurator"
    assert shipped.facts["software_id"] == "aiconfigurator vllm 0.22.0" and file.stat().st_size < 300_000
    listed = models_at_hand.summary()
    assert listed[listed["part"] == ATTENTION.part]["device"].tolist() == ["b200"]
    assert model.of_device("b200", "bf16") is None


def test_a_model_of_other_kernels_is_refused(tmp_path, monkeypatch):
    file = model.path_of("b200", "bf16", ATTENTION)
    (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(model, "SHIPPED", tmp_path)
    with pytest.raises(InputError, match="or of other kernels .attention power."):
        model.of_device("b200", "bf16")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10), st.integers(0, 6), st.integers(0, 6), st.integers(0, 17), st.booleans(), st.floats(1e-3, 1e5))
def test_answers_stay_between_the_least_power_and_the_limit(batch, kv_heads, shared, length, prefill, latency_ms):
    row = pd.DataFrame({"op": ["attention"], "phase": "prefill" if prefill else "decode", "batch": 2**batch,
                        "kv_heads": 2**kv_heads, "heads": 2 ** (kv_heads + shared), "head_dim": 128,
                        "q_len": 2**length if prefill else 1, "kv_len": 2**length, "sliding_window": 0, "dtype": "bf16",
                        "kv_dtype": "fp8", "kernel": "vllm_flashinfer", "latency_ms": latency_ms})
    shipped = model.of_device("b200", "bf16", ATTENTION)
    answer = shipped.predict(row.assign(**attention_power.work(row))).iloc[0]
    assert shipped.facts["least_w"] <= answer["low_w"] <= answer["power_w"] <= answer["high_w"] <= shipped.facts["limit_w"]
