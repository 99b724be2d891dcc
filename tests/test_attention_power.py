"""Published power of attention kernels, from a folder or a wheel: columns, counted work, damaged files."""

import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths, store
from lib.measure.published import aiconfigurator
from tests import output_of, refused, test_power_model
from tests.test_published import parquet

ROOT = "aiconfigurator_core/systems/data"


def perf(folder, original="context", version="0.22.0", **changes):
    """Write a small table as the original has them: two rows, of the second of which the cache is in fp8."""
    context = original == "context"
    parquet(folder / "b200_sxm" / "attention" / "vllm" / version / f"{original}_attention_perf.parquet", **{
             "framework": "VLLM", "version": version, "device": "NVIDIA B200", "op_name": f"{original}_attention",
             "kernel_source": "vllm_flashinfer", "batch_size": [2, 4], "isl": [64, 128] if context else 1,
             "num_heads": [32, 8], "num_key_value_heads": [8, 8], "head_dim": [128, 64], "beam_width": 1,
             "attn_dtype": "bfloat16", "kv_cache_dtype": ["bfloat16", "fp8"], "step": 0 if context else [63, 4095],
             "window_size": [0, 16], "latency": [0.5, 0.1], "power": [800.0, 400.0], "power_limit": 1000.0, **changes})


def packed(folder, target, *others):
    """Write a wheel of the folder's tables, and of other names."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*.parquet")):
            archive.write(path, f"{ROOT}/{path.relative_to(folder)}")
        for name in others:
            archive.writestr(name, "x")
    return target


def test_columns_phases_dtypes_and_short_windows_of_an_import(tmp_path):
    perf(tmp_path)
    perf(tmp_path, "generation", power=[300.0, 1100.0])
    perf(tmp_path, version="0.24.0", power=None, power_limit=None)
    perf(tmp_path, version="0.9.0", power=[1.0, 1.0])
    table = aiconfigurator.attention_power(tmp_path)["b200"]
    assert table[["phase", "q_len", "kv_len", "kv_dtype", "window", "power_w", "status"]].fillna(0).to_numpy().tolist() == [
        ["prefill", 64, 64, "bf16", "long", 800.0, "ok"], ["prefill", 128, 128, "fp8", "short", 400.0, "ok"],
        ["decode", 1, 64, "bf16", "long", 300.0, "ok"], ["decode", 1, 4096, "fp8", "short", 0, "failed"]]
    assert set(table["dtype"]) == {"bf16"}
    assert set(table["software_id"]) == {"aiconfigurator vllm 0.22.0"}
    assert store.validate(table, "attention_power", "here").equals(table)


def test_work_of_known_shapes(tmp_path):
    perf(tmp_path)
    perf(tmp_path, "generation")
    table = aiconfigurator.attention_power(tmp_path)["b200"]
    assert table["flops"].tolist() == [4 * 2 * 32 * 128 * (64 * 65 / 2), 4 * 4 * 8 * 64 * (16 * 17 / 2 + 112 * 16),
                                       4 * 2 * 32 * 128 * 64, 4 * 4 * 8 * 64 * 16]
    assert table["bytes"].tolist() == [2 * 64 * 128 * 2 * (2 * 32 + 2 * 8), 4 * 64 * (2 * 128 * 8 * 2 + 2 * 128 * 8),
                                       2 * 128 * 2 * (2 * 32 + 2 * 64 * 8), 4 * 64 * (2 * 8 * 2 + 2 * 16 * 8)]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 50))
def test_pairs_are_those_that_a_mask_has(q_len, before, sliding_window):
    kv_len = q_len + before
    query, key = np.arange(before, kv_len)[:, None], np.arange(kv_len)
    mask = (key <= query) & ((key > query - sliding_window) | (sliding_window == 0))
    assert aiconfigurator.pairs(np.array([q_len]), np.array([kv_len]), np.array([sliding_window]))[0] == mask.sum()


@pytest.mark.parametrize(("changes", "words"), [
    ({"power": None}, r"missing \(or doubled\) columns \[power\]"), ({"batch_size": [1, 0]}, "row 2 .* as batch_size"),
    ({"beam_width": 4}, "beams are not known here"),
    ({"num_key_value_heads": 3}, "as num_key_value_heads: it is a divisor of num_heads"),
    ({"kv_cache_dtype": "fp4"}, "has 'fp4' as kv_cache_dtype: it is one of"), ({"op_name": "mla"}, "it is context_attention")])
def test_damaged_tables_are_one_line(tmp_path, changes, words):
    perf(tmp_path, **changes)
    with refused(words):
        aiconfigurator.attention_power(tmp_path)


@pytest.mark.slow
def test_a_wheel_and_its_folder_give_the_same_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "IMPORTED", tmp_path / "imported")
    data = tmp_path / "site" / ROOT
    perf(data)
    test_power_model.perf(data, "trtllm", "1.0.0", power=None, power_limit=None)
    file = packed(data, tmp_path / "aiconfigurator_core-0.12.0.whl",
                  f"{ROOT}/b200_sxm/attention/../../evil_perf.parquet", f"{ROOT}/b200_sxm/notes.txt")
    with aiconfigurator.data_folder(file) as folder:
        of_wheel = aiconfigurator.attention_power(folder)["b200"]
        assert len([path for path in folder.rglob("*") if path.is_file()]) == 2
    assert not folder.exists()
    for path in (file, tmp_path / "site", data):
        text = output_of("import", "aiconfigurator", path)
        imported = tmp_path / "imported/b200/power/aiconfigurator/attention_power.parquet"
        assert store.read(imported, "attention_power").equals(of_wheel)
    assert "b200: power of 2 attention kernels in" in text and "; 1 of them ran in windows too short for the sensor" in text
    assert "power of GEMMs: no file has the columns power and power_limit" in text
    assert store.read_json(imported.with_name("attention_power.meta.json"))["short_windows"] == 1


@pytest.mark.parametrize(("name", "words"), [
    ("damaged.whl", "is no wheel or is damaged"), ("a.txt", "is neither a folder nor a wheel"),
    ("other.whl", "holds no aiconfigurator_core/systems/data/")])
def test_what_is_no_wheel_is_one_line(tmp_path, name, words):
    for other in ("damaged.whl", "a.txt"):
        (tmp_path / other).write_text("no archive")
    packed(tmp_path / "nothing", tmp_path / "other.whl", "other/file.py")
    with refused(words), aiconfigurator.data_folder(tmp_path / name):
        pass
