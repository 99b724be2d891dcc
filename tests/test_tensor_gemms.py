"""GEMMs in 16 bits: which of their bytes the last cache serves, how they are scored, and corrected by a few kernels."""

import numpy as np
import pandas as pd
import pytest

from lib.predict import training
from lib.predict.evaluation import gpu_kernels
from lib.predict.operators import features, features_gpu, inputs
from lib.predict.operators.correction import Correction
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import matrices_of, shapes_of
from tests.test_gpu_models import VENDORS, products, shipped

MIB = 2**20


def terms(device, m, n, k):
    row = features.columns(products(m, n, k, item=2))
    return {name: np.asarray(value).item() for name, value in
            features_gpu.values(row, "gemm", Chip.of(VENDORS[device], "bf16"))[0].items()}


@pytest.mark.parametrize(("right_mib", "copies", "resident"), [(16, 5, 1), (24, 4, 1), (32, 3, 1), (40, 3, 0), (20, 5, 0.72),
                                                               (200, 1, 0)])
def test_a_right_matrix_is_read_from_the_cache_where_all_copies_fit(right_mib, copies, resident):
    """The L40S has a last cache of 96 MiB; as many copies as fill it were read in turn, five at most."""
    k, right = 4096, right_mib * MIB // 2
    found = terms("l40s", 1, right // k, k)
    move = 2.0 * (k + right + right // k) / 864e6
    assert 1 - found["move_ms"] / move == pytest.approx(resident, abs=0.02), f"{copies} copies"
    assert found["cached_ms"] == pytest.approx(resident * move * 864e6 / (142 * 2e7), abs=0.02 * move)
    assert found["move_ms"] + found["cached_ms"] <= move * (1 + 1e-9), "a cache is never slower than its memory"


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_device_whose_entry_states_no_cache_has_features(dtype):
    """Such an entry of params/devices.yaml is allowed; it ended in a ZeroDivisionError."""
    chip = Chip.of(VENDORS["l40s"].model_copy(update={"cache_mb": 0.0}), dtype)
    for table in inputs.frames(products(8, 1024, 1024), chip):
        assert np.isfinite(table.to_numpy()).all()


def test_few_tiles_cut_k_and_many_wait_for_one_another():
    few, more, wave = (terms("h100-sxm", m, m, 8192)["steps"] * 1e4 for m in (128, 1024, 16384))
    assert few < more < wave
    assert few <= 8192 / 16, "one tile for 132 multiprocessors: k is cut into 16"
    assert wave >= 8192 * np.ceil(128 * 64 / 132), "8,192 tiles of 128 x 256 at least"


@pytest.mark.slow
def test_no_fold_splits_the_ms_of_one_matrix():
    sizes = np.array([(m, n, k) for n, k in np.random.default_rng(0).integers(1, 64, (12, 2)) * 64 for m in (1, 16, 17, 256)])
    table = products(*sizes.T, item=2, dtype="bf16", hardware_id="published:b200")
    table["latency_ms"] = 0.003 + table["bytes"] / 4e9
    model = training.gpu_model("b200", table, "aiconfigurator", "bf16", quick=True)
    fold = model.parts["gemm forward"].held_out["fold"]
    split = fold.groupby(matrices_of(table)).agg(["min", "max"])
    assert (split["min"] == split["max"]).all() and set(fold) == {0, 1, 2}
    assert shapes_of(table).nunique() > matrices_of(table).nunique()
    assert gpu_kernels.MATRICES.format(3) in set(gpu_kernels.scores(gpu_kernels.own(model, table))["split"])


def test_a_correction_with_lengths_ignores_what_does_not_matter():
    """One length for all features spends its points on six that say nothing."""
    x = np.random.default_rng(0).normal(size=(560, 7))
    truth, errors = 0.4 * np.sin(2 * x[:, 0]), {}
    for lengths in (False, True):
        fitted = Correction.fit(list("abcdefg"), x[:60], truth[:60], lengths)
        errors[lengths] = np.abs(fitted(x[60:]) - truth[60:]).mean()
        assert np.isfinite([*fitted.scale, fitted.length]).all()
    assert errors[True] < 0.3 * errors[False]


@pytest.mark.parametrize(("devices", "dtype", "scored"), [
    (("p4", "p100-pcie-16gb"), "fp32", set()), (("h100-sxm", "h200-sxm"), "bf16", {"h100-sxm", "h200-sxm", "mean"})])
def test_a_sibling_does_not_answer_for_kernels_that_were_throttled_on_either(devices, dtype, scored):
    """GEMMs of the P4 were: a training of both ended in an error of its scores, after all models were trained."""
    tables = {}
    for seed, device in enumerate(devices):
        table = products(*np.random.default_rng(seed).integers(1, 64, (3, 60)) * 32, dtype=dtype)
        tables[device] = table.assign(latency_ms=0.03 + table["flops"] / 4e9, hardware_id=f"published:{device}")
    cases = gpu_kernels.by_sibling([shipped(device, dtype) for device in devices], tables)
    scores = gpu_kernels.scores(cases, points=60)
    assert set(scores["device"]) == scored and list(scores.columns) == list(gpu_kernels.COLUMNS)
    assert set(scores["split"]) <= {gpu_kernels.SIBLING}, "60 kernels of 60 leave none to score"


def test_published_scores_of_gemms_on_gpus_left_out_are_those_of_any_gpu_and_better_than_baselines():
    table = pd.read_csv(gpu_kernels.path("bf16"))
    mape, corrected = table.set_index(["split", "device", "learner"])["mape"].sort_index(), gpu_kernels.CORRECTED.format(
        gpu_kernels.DEVICE, 200)
    whole = shipped("any-gpu", "bf16").parts["gemm forward"]
    rows = table.query("split == @gpu_kernels.DEVICE and learner == 'this model' and device != 'mean'")
    assert rows.eval("mape * n").sum() / whole.rows == pytest.approx(whole.scores["mape"], rel=1e-3)
    for split in (gpu_kernels.DEVICE, corrected, gpu_kernels.SIBLING):
        assert mape[split, "mean"].idxmin() == "this model", "better than each baseline"
    assert mape[corrected, "mean", "this model"] < mape[gpu_kernels.DEVICE, "mean", "this model"]
    assert set(mape[gpu_kernels.SIBLING].index.get_level_values("device")) == {"h200-sxm", "h100-sxm", "mean"}
