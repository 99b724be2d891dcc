"""GEMMs in 16 bits: which of their bytes the last cache serves, how they are scored, and corrected by a few kernels."""

import numpy as np
import pandas as pd
import pytest

from lib.predict import training
from lib.predict.evaluation import gpu_kernels
from lib.predict.operators import features, features_gpu, inputs
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.validation import matrices_of
from tests.test_gpu_models import VENDORS, products, shipped

MIB = 2**20


def terms(device, m, n, k):
    row = features.columns(products(m, n, k, item=2))
    return {name: np.asarray(value).item() for name, value in
            features_gpu.values(row, "gemm", Chip.of(VENDORS[device], "bf16"))[0].items()}


@pytest.mark.parametrize("right_mib, copies, resident", [(16, 5, 1), (40, 3, 0), (20, 5, 0.72)])
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
