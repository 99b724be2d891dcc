"""GEMMs in 16 bits: which of their bytes the last cache serves, how they are scored, and corrected by a few kernels."""

import numpy as np
import pandas as pd
import pytest

from lib.config.definitions import load_devices
from lib.predict import registry, training
from lib.predict.evaluation import gpu_kernels
from lib.predict.operators import features, features_gpu
from lib.predict.operators.correction import Correction
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import matrices_of, shapes_of

MIB = 2**20


def _terms(device: str, m: int, n: int, k: int) -> features.Row:
    row = features.one("linear", {"gemm_m": m, "gemm_n": n, "gemm_k": k}, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n))
    return features_gpu.terms(row, "gemm", Chip.of(load_devices()[device], "bf16"))


@pytest.mark.parametrize(("right_mib", "copies", "resident"), [(16, 5, 1), (24, 4, 1), (32, 3, 1), (40, 3, 0), (20, 5, 0.72),
                                                               (200, 1, 0)])
def test_a_right_matrix_is_read_from_the_cache_where_all_copies_fit(right_mib, copies, resident):
    """The L40S has a last cache of 96 MiB; as many copies as fill it were read in turn, five at most."""
    k = 4096
    terms = _terms("l40s", 1, right_mib * MIB // 2 // k, k)
    move = 2.0 * (k + right_mib * MIB // 2 + right_mib * MIB // 2 // k) / 864e6
    assert 1 - terms["move_ms"] / move == pytest.approx(resident, abs=0.02), f"{copies} copies"
    assert terms["cached_ms"] == pytest.approx(resident * move * 864e6 / (142 * 2e7), abs=0.02 * move)
    assert terms["move_ms"] + terms["cached_ms"] <= move * (1 + 1e-9), "a cache is never slower than its memory"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_device_whose_entry_states_no_cache_has_features(dtype):
    """Such an entry of params/devices.yaml is allowed; it ended in a ZeroDivisionError."""
    chip = Chip.of(load_devices()["l40s"].model_copy(update={"cache_mb": 0.0}), dtype)
    row = features.one("linear", {"gemm_m": 8, "gemm_n": 1024, "gemm_k": 1024}, 2.0**24, 2.0**21)
    for part in (features_gpu.terms, features_gpu.features):
        assert np.isfinite([float(value) for value in part(row, features_gpu.gemm_group(chip), chip).values()]).all()


def test_few_tiles_cut_k_and_many_wait_for_one_another():
    few, more, wave = (float(_terms("h100-sxm", m, m, 8192)["steps"]) * 1e4 for m in (128, 1024, 16384))
    assert few < more < wave
    assert few <= 8192 / 16, "one tile for 132 multiprocessors: k is cut into 16"
    assert wave >= 8192 * np.ceil(128 * 64 / 132), "8,192 tiles of 128 x 256 at least"


def test_no_fold_splits_the_ms_of_one_matrix():
    rng = np.random.default_rng(0)
    sizes = [(m, n, k) for n, k in rng.integers(1, 64, (12, 2)) * 64 for m in (1, 16, 17, 256)]
    table = pd.DataFrame(sizes, columns=["gemm_m", "gemm_n", "gemm_k"]).assign(**{
        "op": "linear", "pass": "forward", "layout": "nt", "status": "ok", "verdict": "noisy", "hardware_id": "published:b200",
        "device": "cuda:0", "dtype": "bf16", "cache": "warm", "latency_type": "kernel", "threads": 0, "latency_iqr_ms": np.nan,
        "config": "x", "software_id": "x"})
    table["flops"] = 2.0 * table["gemm_m"] * table["gemm_n"] * table["gemm_k"]
    table["bytes"] = 2.0 * (table["gemm_m"] * table["gemm_k"] + table["gemm_k"] * table["gemm_n"])
    table["latency_ms"] = 0.003 + table["bytes"] / 4e9
    model = training.gpu_model("b200", table, "aiconfigurator", "bf16", quick=True)
    fold = model.parts["gemm forward"].held_out["fold"]
    split = fold.groupby(matrices_of(table)).agg(["min", "max"])
    assert (split["min"] == split["max"]).all() and set(fold) == {0, 1, 2}
    assert shapes_of(table).nunique() > matrices_of(table).nunique()
    splits = gpu_kernels.own_scores(model, table)["split"]
    assert gpu_kernels.MATRICES.format(3) in set(splits)


def test_a_correction_with_lengths_ignores_what_does_not_matter():
    """One length for all features spends its points on six that say nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(560, 7))
    truth = 0.4 * np.sin(2 * x[:, 0])
    errors = {}
    for lengths in (False, True):
        fitted = Correction.of(list("abcdefg"), x[:60], truth[:60], lengths)
        errors[lengths] = np.abs(fitted(x[60:]) - truth[60:]).mean()
        assert np.isfinite([*fitted.scale, fitted.length]).all()
    assert errors[True] < 0.3 * errors[False]


def _published(device: str, dtype: str, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.integers(1, 64, (60, 3)) * 32, columns=["gemm_m", "gemm_n", "gemm_k"]).assign(**{
        "op": "linear", "pass": "forward", "layout": "nt", "status": "ok", "verdict": "noisy",
        "hardware_id": f"published:{device}", "device": "cuda:0", "dtype": dtype, "cache": "warm", "latency_type": "kernel",
        "threads": 0, "latency_iqr_ms": np.nan, "config": "x", "software_id": "x"})
    table["flops"] = 2.0 * table["gemm_m"] * table["gemm_n"] * table["gemm_k"]
    table["bytes"] = 4.0 * (table["gemm_m"] * table["gemm_k"] + table["gemm_k"] * table["gemm_n"])
    return table.assign(latency_ms=0.03 + table["flops"] / 4e9)


def test_a_sibling_does_not_answer_for_kernels_that_were_throttled_on_either():
    """GEMMs of the P4 were: a training of both ended in an error of its scores, after all models were trained."""
    models = [CostModel.load(registry.path_of(device, "fp32", registry.SHIPPED)) for device in ("p4", "p100-pcie-16gb")]
    tables = {model.device: _published(model.device, "fp32", seed) for seed, model in enumerate(models)}
    scores = gpu_kernels.sibling_scores(models, tables)
    assert scores.empty and list(scores.columns) == list(gpu_kernels.COLUMNS)
    devices = ("h100-sxm", "h200-sxm")
    models = [CostModel.load(registry.path_of(device, "bf16", registry.SHIPPED)) for device in devices]
    tables = {model.device: _published(model.device, "bf16", seed) for seed, model in enumerate(models)}
    scores = gpu_kernels.sibling_scores(models, tables, points=60)
    assert set(scores["device"]) == {*devices, "mean"}
    assert set(scores["split"]) == {gpu_kernels.SIBLING}, "60 kernels of 60 leave none to score"


def test_published_scores_of_gemms_are_those_of_the_shipped_models():
    table = pd.read_csv(gpu_kernels.path("bf16"))
    assert list(table.columns) == list(gpu_kernels.COLUMNS)
    mape = table.set_index(["split", "device", "learner"])["mape"]
    devices = {"h200-sxm", "h100-sxm", "b200", "l40s", "a100-sxm-80gb"}
    for device in devices:
        part = CostModel.load(registry.path_of(device, "bf16", registry.SHIPPED)).parts["gemm forward"]
        assert mape[gpu_kernels.MATRICES.format(5), device, "this model"] == pytest.approx(part.scores["mape"], rel=1e-3)
    left_out = mape[gpu_kernels.DEVICE].xs("this model", level="learner")
    assert set(left_out.index) == devices | {"mean"}
    assert left_out["mean"] == pytest.approx(left_out.drop("mean").mean(), rel=1e-3)
    whole = CostModel.load(registry.path_of("any-gpu", "bf16", registry.SHIPPED)).parts["gemm forward"]
    rows = table[(table["split"] == gpu_kernels.DEVICE) & (table["learner"] == "this model") & (table["device"] != "mean")]
    assert (rows["mape"] * rows["n"]).sum() / whole.rows == pytest.approx(whole.scores["mape"], rel=1e-3)
    corrected = gpu_kernels.CORRECTED.format(gpu_kernels.DEVICE, 200)
    assert mape[corrected, "mean", "this model"] < left_out["mean"]
    for split in (gpu_kernels.DEVICE, corrected, gpu_kernels.SIBLING):
        assert mape[split, "mean", "this model"] < mape[split, "mean"].drop("this model").min(), "better than each baseline"
    assert set(mape[gpu_kernels.SIBLING].index.get_level_values("device")) == {"h200-sxm", "h100-sxm", "mean"}
