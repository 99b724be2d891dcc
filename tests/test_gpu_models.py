"""The models of GPUs: bounded wherever they are asked, ordered as the cards are, honest about whom they were learned of."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict import registry, training, transfer
from lib.predict.evaluation import baselines, gpu_kernels, gpu_networks
from lib.predict.learners.trees import Trees
from lib.predict.operators import features, features_gpu, fitting, inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.fine_tuning import fine_tuned
from lib.predict.operators.parts import Interval
from lib.predict.operators.regressors import Boosted, Rates
from lib.predict.operators.validation import shapes_of

GPU_FILES = {key: path for key, path in registry.model_files().items()
             if not key[0].startswith("cpu-") and path.parent == registry.SHIPPED}


@pytest.fixture(scope="module")
def answers():
    """Give what all models at hand predict of all networks of the published table, computed now."""
    return gpu_networks.table()


@pytest.fixture(scope="module")
def gemms():
    """Give a table of GEMMs with known times: a launch, and half of the roof beyond it."""
    draw, chip = np.random.default_rng(0), Chip.of(load_devices()["t4"], "fp32")
    m, n, k = (2.0 ** draw.uniform(4, 11, 400) // 1 for _ in range(3))
    table = pd.DataFrame({"op": "linear", "pass": "forward", "gemm_m": m, "gemm_n": n, "gemm_k": k, "layout": "nt",
                          "flops": 2 * m * n * k, "bytes": 4 * (m * k + k * n + m * n)})
    roof = np.maximum(table["flops"] / chip.flops_per_ms, table["bytes"] / chip.bytes_per_ms)
    facts = {"status": "ok", "verdict": "noisy", "hardware_id": "t4", "device": "cuda:0", "dtype": "fp32", "cache": "warm",
             "latency_type": "kernel", "threads": 1, "latency_iqr_ms": np.nan, "config": "x"}
    return table.assign(latency_ms=0.01 + 2 * roof * draw.normal(1, 0.03, len(m)), **facts)


@pytest.fixture(scope="module")
def model(gemms):
    return fitting.fit(gemms, {"dtype": "fp32", "latency_type": "kernel", "launch_ms": 0.01},
                         Chip.of(load_devices()["t4"], "fp32"), quick=True)


# ---------------------------------------------------------------------------------------------- what is shipped


@pytest.mark.slow
def test_no_answer_is_far_from_its_roof(answers):
    """Not beyond 8 times roof and launches; nor below half of the roof, as far as caches and Winograd's FLOPs can reach."""
    ratio = answers["predicted_ms"] / (answers["roof_ms"] + answers["launches_ms"])
    assert not len(answers[ratio > 8]), answers[ratio > 8]
    assert not len(answers[answers["predicted_ms"] < 0.5 * answers["roof_ms"]])
    assert set(answers["network"]) == set(gpu_networks.NETWORKS) and set(answers["batch_size"]) == {1, 64}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", gpu_networks.DTYPES)
def test_faster_cards_are_not_slower(answers, dtype):
    """Ordered are two cards of which one has both the higher peak rate and the higher bandwidth, by a fifth or more.

    A card that is bound by launches takes the time of the host on which its data were published, not its own: an eager
    activation takes at least 38 µs on the V100's and 31 µs on the T4's and the A100's. The P100's is the slowest: an addition
    takes 41 µs, on the P4's 26, which counts in every operator of a small batch.
    """
    vendors, wrong, pairs = load_devices(), [], 0
    for _, rows in answers[answers["dtype"] == dtype].groupby(["network", "batch_size"]):
        for fast in rows.itertuples():
            for slow in rows.itertuples():
                one, other = vendors[fast.device], vendors[slow.device]
                if one.peak_gflops[dtype] >= 1.2 * other.peak_gflops[dtype] and one.peak_gbps >= 1.2 * other.peak_gbps:
                    pairs += 1
                    slow_host = (fast.device, slow.device, fast.batch_size) == ("p100-pcie-16gb", "p4", 1)
                    allowed = 1.45 if slow_host else 1.25 if fast.bound == "launch" else 1.0
                    wrong += [(fast, slow)] if fast.predicted_ms > allowed * slow.predicted_ms else []
    assert pairs > 50
    assert not wrong


@pytest.mark.slow
def test_answers_say_of_whom_they_were_learned(answers):
    source = answers.set_index(["dtype", "device", "network", "batch_size"])["source"].sort_index()
    assert source["fp32", "v100-pcie-32gb", "vit_b_16", 64] == "predicted"
    assert source["fp32", "a100-pcie-80gb", "vit_b_16", 64] == "zero-shot from a100-pcie-40gb", "a sibling before any GPU"
    assert source["fp32", "a100-pcie-40gb", "resnet50", 64].endswith("from a100-pcie-80gb")
    assert source["fp32", "h100-sxm", "vit_b_16", 64] == "zero-shot from any-gpu"
    assert source["bf16", "a100-pcie-80gb", "vit_b_16", 64] == "zero-shot from a100-sxm-80gb", "of whom most of the time is"
    assert source["bf16", "a100-pcie-40gb", "vit_b_16", 64] == "zero-shot from a100-pcie-40gb fp32", "its own kernels' casts"
    assert source["bf16", "h100-sxm", "resnet50", 64].startswith("zero-shot"), "no convolution was published in 16 bits"


@pytest.mark.slow
def test_every_shipped_model_predicts_what_was_published(answers):
    published = pd.read_csv(gpu_networks.path(), keep_default_na=False)
    pd.testing.assert_frame_equal(answers, published, rtol=1e-6)


def test_features_that_never_varied_are_in_no_model():
    for path in registry.model_files().values():
        for name, part in CostModel.load(path).parts.items():
            assert set(part.regressor.names) <= set(part.features)
            for feature in part.regressor.names:
                if feature not in features.TEXTS:
                    low, high = part.ranges[feature]
                    assert low < high, (path.name, name, feature)


@pytest.mark.parametrize("key", GPU_FILES, ids=" ".join)
def test_what_is_far_out_of_range_stays_in_proportion(key):
    """A GEMM of 4 million rows, and one of 1 element, take no more than 8 times their roof and a launch.

    The P4's were measured while it was throttled, large ones at a tenth of the peak.
    """
    model = CostModel.load(GPU_FILES[key])
    if not {"gemm forward", "sgemm forward"} & set(model.parts):
        pytest.skip("no GEMM was published for it")
    chip = model.chip or Chip.of(load_devices()["h100-sxm"], key[1])
    model = model if model.chip else model.on(load_devices()["h100-sxm"], key[1])
    extremes = [(4e6, 64, 64), (4e6, 4096, 4096), (1, 1, 1), (1, 3e5, 64), (4096, 4096, 3e5)]
    sizes = pd.DataFrame(extremes, columns=["m", "n", "k"])
    table = pd.DataFrame({"op": "linear", "pass": "forward", "gemm_m": sizes["m"], "gemm_n": sizes["n"], "gemm_k": sizes["k"],
                          "flops": 2 * sizes.prod(axis=1),
                          "bytes": chip.item * (sizes["m"] * sizes["k"] + sizes["k"] * sizes["n"] + sizes["m"] * sizes["n"])})
    answer = model.predict(table)
    roof = np.maximum(table["flops"] / chip.flops_per_ms, table["bytes"] / chip.bytes_per_ms)
    assert answer["out_of_range"].all()
    most = 11 if key[0] == "p4" else 8
    assert (answer["predicted_ms"] < most * (roof + 2 * model.facts["launch_ms"])).all(), answer.assign(roof=roof)


# ---------------------------------------------------------------------------------------------- how it works


def test_trees_as_arrays_say_what_lightgbm_says():
    import lightgbm

    draw = np.random.default_rng(0)
    x = draw.normal(size=(800, 4)).astype(np.float32)
    y = np.where(x[:, 0] > 0.3, 1.0, -1.0) + x[:, 1] ** 2
    boosters = [lightgbm.train({"verbosity": -1, "seed": seed, "num_threads": 1}, lightgbm.Dataset(x, y), 40)
                for seed in (0, 1)]
    expected = np.mean([booster.predict(x) for booster in boosters], axis=0)
    assert Trees.of(boosters)(x) == pytest.approx(expected, abs=2e-3), "leaves have 16 bits"


def test_depthwise_convolutions_are_windows_over_memory():
    rows = pd.DataFrame([
        {"op": "conv2d", "in_channels": 96, "out_channels": 96, "groups": 96, "kernel_h": 3, "kernel_w": 3},
        {"op": "conv2d", "in_channels": 256, "out_channels": 256, "groups": 32, "kernel_h": 3, "kernel_w": 3},
        {"op": "conv2d", "in_channels": 256, "out_channels": 256, "groups": 4, "kernel_h": 3, "kernel_w": 3},
        {"op": "conv2d", "in_channels": 256, "out_channels": 64, "groups": 1, "kernel_h": 1, "kernel_w": 1},
        {"op": "conv2d", "in_channels": 3, "out_channels": 64, "groups": 1, "kernel_h": 7, "kernel_w": 7},
        {"op": "pool2d", "in_channels": 64, "groups": np.nan, "kernel_h": 3, "kernel_w": 3}, {"op": "attention"},
        {"op": "copy"}])
    rows = rows.assign(flops=1.0, bytes=1.0)
    chip = Chip.of(load_devices()["t4"], "fp32")
    assert list(features_gpu.groups(features.columns(rows), chip))[3] == "sgemm", "on vector units, with tiles of their own"
    assert list(features_gpu.groups(features.columns(rows))) == ["window", "window", "convolution", "gemm", "convolution",
                                                                   "window", "gemm", "memory"]
    with pytest.raises(InputError, match="no features for fft"):
        features.columns(pd.DataFrame({"op": ["fft"]}))


@pytest.mark.slow
def test_out_of_range_the_factor_stays_within_what_was_trained(model, gemms):
    part = model.parts["sgemm forward"]
    assert isinstance(part.regressor, Boosted)
    assert "batch" not in part.regressor.names and "batch" in part.features, "it never varied"
    huge = gemms.head(5).assign(gemm_m=1e7, flops=gemms["flops"].head(5) * 1e4, bytes=gemms["bytes"].head(5) * 1e4)
    terms, _ = inputs.frames(huge, model.chip)
    factor = np.log(model.predict(huge)["predicted_ms"] / (terms.to_numpy() @ part.regressor.costs))
    low, high = part.regressor.quantiles
    assert ((factor >= low - 1e-9) & (factor <= high + 1e-9)).all()


def test_a_gpu_is_completed_by_siblings_before_any_gpu(gemms, tmp_path):
    vendors, files = load_devices(), {}
    chip = Chip.of(vendors["h200-sxm"], "bf16")
    model = fitting.fit(gemms, {"dtype": "bf16", "latency_type": "kernel", "launch_ms": 0.01}, chip, quick=True)
    for device, scale in (("h200-sxm", 1.0), (transfer.ANY_GPU, 2.0)):
        part = model.parts["gemm forward"]
        costs = part.regressor.costs * scale
        own = {"gemm forward": replace(part, regressor=replace(part.regressor, costs=costs))}
        facts = {**model.facts, "dtype": "bf16"}
        files[device, "bf16"] = CostModel(device, facts, own, chip).save(tmp_path / device)
    costs = dict.fromkeys(inputs.names("memory", chip)[0], 0.0) | {"move_ms": 0.5, "move_beyond_8us": 0.75, "call": 0.05}
    rates = Rates(list(costs), np.array(list(costs.values())))
    memory = {"memory forward": replace(part, regressor=rates, features=[], ranges={}, correction=None)}
    facts = {**model.facts, "dtype": "fp32", "latency_type": "end_to_end", "launch_ms": 0.05}
    files[transfer.ANY_GPU, "fp32"] = CostModel(transfer.ANY_GPU, facts, memory).save(tmp_path / "fp32")
    assert transfer.siblings(vendors["h100-pcie"])[0] in ("h100-sxm", "h200-sxm")
    found = transfer.gpu_model(vendors["h100-pcie"], "bf16", files, CostModel.load)
    assert found.parts["gemm forward"].origin == "h200-sxm"
    assert found.parts["memory forward"].origin == "any-gpu fp32"
    assert found.parts["window forward"].origin == transfer.ANALYTIC
    cost = dict(zip(found.parts["memory forward"].regressor.terms, found.parts["memory forward"].regressor.costs, strict=True))
    assert (cost["move_ms"], cost["call"]) == (1.25, 0.01), "a rate carries over to kernel times, an eager launch does not"
    assert transfer.gpu_model(vendors["mi300x"], "bf16", {}, CostModel.load) is None


@pytest.mark.slow
def test_folds_share_no_shape_and_score_every_row_once(gemms, monkeypatch):
    trained, chip = [], Chip.of(load_devices()["t4"], "fp32")
    fit_regressor = fitting.fit_regressor

    def noted(rows, *rest):
        trained.append(set(shapes_of(rows)))
        return fit_regressor(rows, *rest)

    monkeypatch.setattr(fitting, "fit_regressor", noted)
    rows = pd.concat([gemms, gemms.assign(latency_ms=gemms["latency_ms"] * 1.1)], ignore_index=True)  # every shape twice
    part = fitting.fit_part(rows, partial(inputs.frames, chip=chip), form="boosted")
    *folds, everything = trained
    assert everything == set(shapes_of(rows))
    held_out = [everything - fold for fold in folds]
    assert set.union(*held_out) == everything and sum(map(len, held_out)) == len(everything)
    assert part.held_out["predicted_ms"].notna().all() and len(part.held_out) == len(rows)


def test_power_bounds_a_rate_only_where_it_is_known():
    vendors = load_devices()
    share = {name: (chip := Chip.of(vendors[name], "fp32")).powered_flops_per_ms / chip.flops_per_ms
             for name in ("t4", "v100-pcie-32gb", "a100-pcie-40gb")}
    assert share["t4"] < 0.5 < share["v100-pcie-32gb"] < 1 < share["a100-pcie-40gb"], "70 W, and 250 W"
    unknown = Chip.of(vendors["t4"].model_copy(update={"power_w": 0.0}), "fp32")
    assert unknown.powered_flops_per_ms == 0
    row = features.one("linear", {"gemm_m": 8192, "gemm_n": 8192, "gemm_k": 8192}, 2.0 * 8192**3, 12.0 * 8192**2)
    known, free = (features_gpu.terms(row, "sgemm", chip)["longest_ms"] for chip in (Chip.of(vendors["t4"], "fp32"), unknown))
    assert known == pytest.approx(2 * 8192**3 / 8.1e9 / share["t4"])
    assert free < 1.2 * 2 * 8192**3 / 8.1e9


def test_a_gemm_is_planned_in_whole_waves_of_the_best_tile():
    chip = replace(Chip.of(load_devices()["v100-pcie-32gb"], "fp32"), powered_flops_per_ms=0.0)

    def planned(m: int, n: int, k: int) -> float:
        row = features.one("linear", {"gemm_m": m, "gemm_n": n, "gemm_k": k}, 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n))
        return float(features_gpu._planned(row, features_gpu._gemm(row), chip))

    whole = 80 * 128
    assert planned(whole, 128, 4096) == pytest.approx(2 * whole * 128 * 4096 / 14e9 * (1 + 8 / 128 + 8 / 128))
    assert 1.1 < planned(whole + 1, 128, 4096) / planned(whole, 128, 4096) < 2, "a tile more than fits, in smaller tiles"
    assert planned(32, 32, 65536) < 80 * 32 * 32 * 2 * 65536 / 14e9 / 4, "few tiles: k is cut"


def test_element_wise_work_takes_what_it_moves():
    """Not its FLOPs: gelu has 5 an element, relu 1. Beyond the training range time grows as the bytes do."""
    for device in ("v100-pcie-32gb", "t4", "a100-pcie-40gb", "p100-pcie-16gb"):
        model = CostModel.load(GPU_FILES[device, "fp32"])

        def ms(kind: str, elements: float, each: int, model=model) -> float:
            row = {"op": "activation", "pass": "forward", "kind": kind, "elements": elements, "inplace": 0}
            rows = pd.DataFrame([{**row, "flops": each * elements, "bytes": 8 * elements}])
            return model.predict(rows)["predicted_ms"].iloc[0]

        assert ms("gelu", 5e7, 5) == pytest.approx(ms("relu", 5e7, 1), rel=0.05), device
        assert ms("gelu", 5e9, 5) == pytest.approx(10 * ms("gelu", 5e8, 5), rel=0.03), device
        assert ms("mish", 5e7, 6) == pytest.approx(ms("relu", 5e7, 1), rel=0.2), "a kind that was never measured"


def test_batches_of_small_gemms_fill_a_large_tile_in_vain():
    """The batched GEMMs of the A100 were all of one tile of 128 x 128: a quarter of its rows takes as long."""
    model = CostModel.load(GPU_FILES["a100-pcie-40gb", "fp32"])
    rows = pd.DataFrame([{"op": "bmm", "pass": "forward", "batch": 432, "gemm_m": m, "gemm_n": 128, "gemm_k": 512,
                          "layout": "nn", "flops": 2.0 * 432 * m * 128 * 512,
                          "bytes": 4.0 * 432 * (m * 512 + 512 * 128 + m * 128)}
                         for m in (128, 64, 32)])
    whole, half, quarter = model.predict(rows)["predicted_ms"]
    assert half > 0.75 * whole and quarter > 0.6 * whole


def test_what_was_throttled_trains_no_model_of_other_gpus():
    model = CostModel.load(GPU_FILES["any-gpu", "fp32"])
    assert all(isinstance(model.parts[name].regressor, Rates) for name in ("sgemm forward", "memory forward"))
    assert "p4" in model.facts["devices"] and "sgemm forward" in CostModel.load(GPU_FILES["p4", "fp32"]).parts
    ones = pd.DataFrame({"op": ["bmm", "softmax"], "dtype": "fp32", "status": "ok", "verdict": "noisy", "latency_ms": 1.0,
                         "hardware_id": "x", "device": "cuda:0", "threads": 1, "latency_type": "kernel", "cache": "warm"})
    rows = training.of_several({"p4": ones, "t4": ones}, "fp32")
    assert sorted(zip(rows["hardware_id"], rows["op"], strict=True)) == [("p4", "softmax"), ("t4", "bmm"), ("t4", "softmax")]
    throttled = training.of_several({"p4": ones, "t4": ones}, "fp32", throttled=True)
    assert list(zip(throttled["hardware_id"], throttled["op"], strict=True)) == [("p4", "bmm")]


def test_published_scores_of_kernels_are_those_of_the_shipped_models():
    table = pd.read_csv(gpu_kernels.path("fp32"))
    own = table[(table["split"] == gpu_kernels.SHAPES.format(5)) & (table["learner"] == "this model")]
    own = own.set_index(["device", "operator"])
    for device in ("v100-pcie-32gb", "t4", "p4"):
        part = CostModel.load(GPU_FILES[device, "fp32"]).parts["sgemm forward"]
        both = own.loc[[(device, "GEMM"), (device, "batched GEMM")]]
        assert (both["mape"] * both["n"]).sum() / part.rows == pytest.approx(part.scores["mape"], rel=1e-3)
    left_out = table[(table["split"] == gpu_kernels.DEVICE) & (table["learner"] == "this model")]
    left_out = left_out[left_out["operator"] == "GEMM"]
    single = left_out[left_out["device"] != "mean"]
    assert set(single["device"]) == {"v100-pcie-32gb", "t4", "p100-pcie-16gb", "a100-pcie-40gb", "p4"}
    assert left_out.set_index("device")["mape"]["mean"] == pytest.approx(single["mape"].mean(), rel=1e-3)
    assert {"line", "trees", "roofline"} < set(table["learner"])
    memory = table[(table["learner"] == "this model") & table["operator"].isin(("element-wise", "softmax", "layer norm"))]
    memory = memory[memory["split"] == gpu_kernels.SHAPES.format(5)]
    assert len(memory) == 15 and memory["cover"].between(85, 95).all(), "each family by its own errors"
    assert memory["cover_one_interval"].min() < 65, "by those of all memory-bound kernels"


def test_scores_of_kernels_stand_beside_baselines_on_the_same_rows(model, gemms):
    rows = gemms.assign(hardware_id="published:t4")
    scores = gpu_kernels.own_scores(fitting.fit(rows, model.facts, model.chip, quick=True), rows)
    assert list(scores.columns) == list(gpu_kernels.COLUMNS)
    mape = scores.set_index(["split", "learner"])["mape"]
    for split, count in ((gpu_kernels.SHAPES.format(3), 400), (gpu_kernels.LARGEST, 40)):
        assert set(scores[scores["split"] == split]["n"]) == {count}
        assert mape[split, "this model"] < 10 < mape[split, "roofline"]
    assert scores["cover"].notna().sum() == 1, "of the model's intervals, on folds"


def test_baselines_of_kernels_are_those_of_all_models_on_the_folds_of_the_model(model, gemms, monkeypatch):
    """A quick model has three folds: its baselines were trained without the same rows as it was."""
    tested, rows = [], gemms.assign(hardware_id="published:t4")
    monkeypatch.setitem(baselines.BASELINES, "roofline",
                        lambda data, train, test: tested.append(sorted(test)) or 2 * data.measured[test])
    quick = fitting.fit(rows, model.facts, model.chip, quick=True)
    scores = gpu_kernels.own_scores(quick, rows)
    assert scores[scores["learner"] == "roofline"]["mape"].tolist() == pytest.approx([100.0, 100.0])
    fold = quick.parts["sgemm forward"].held_out["fold"].to_numpy()
    assert tested[:3] == [np.flatnonzero(fold == number).tolist() for number in range(3)]


def test_rates_are_fitted_to_all_rows_alike(gemms):
    """How far a row's rounds disagree weighs it for trees alone."""
    rows = gemms.drop(columns="latency_iqr_ms")
    frames = partial(inputs.frames, chip=Chip.of(load_devices()["t4"], "fp32"))
    assert isinstance(fitting.fit_regressor(rows, frames, form="rates"), Rates)


@pytest.mark.parametrize("group", features_gpu.GROUPS)
def test_every_group_of_a_gpu_has_terms_and_features_of_each_of_its_operators(group):
    chip = Chip.of(load_devices()["t4"], "fp32")
    for op in features_gpu.GROUPS[group]:
        row = features.one(op, {}, 1.0, 1.0)
        assert [len(inputs.names(group, chip)[kind]) for kind in (0, 1)] == [
            values.shape[1] for values in inputs.arrays(row, group, chip)]


def test_families_of_one_part_have_intervals_of_their_own(tmp_path):
    """Softmax scatters ten times as far as additions do; layer norm has too few rows, and the interval of all."""
    draw, chip, several = np.random.default_rng(0), Chip.of(load_devices()["t4"], "fp32"), []
    for op, kind, count, noise in (("elementwise", "add", 400, 0.02), ("softmax", "softmax", 200, 0.2),
                                   ("layer_norm", "layer_norm", 40, 0.02)):
        size = pd.DataFrame({"rows": 2.0 ** draw.uniform(6, 13, count) // 1, "columns": 2.0 ** draw.uniform(6, 12, count) // 1})
        moved = 8 * size.prod(axis=1)
        several.append(size.assign(op=op, kind=kind, flops=moved / 8, bytes=moved, latency_iqr_ms=np.nan, latency_ms=np.exp(
            draw.normal(0, noise, count)) * (0.01 + 2 * moved / chip.bytes_per_ms)))
    rows = pd.concat(several, ignore_index=True)
    part = fitting.fit_part(rows, partial(inputs.frames, chip=chip), form="boosted")
    assert set(part.families) == {"elementwise", "softmax"}
    of_gpus = pd.Series(np.arange(len(rows)) % 5, rows.index)
    assert not fitting.fit_part(rows, partial(inputs.frames, chip=chip), groups=of_gpus, form="rates").families, "five groups"
    covered = gpu_kernels._with_one_interval(rows, part.held_out).groupby(rows["op"]).apply(lambda own: pd.Series(
        {name: rows["latency_ms"][own.index].between(own[low], own[high]).mean()
         for name, (low, high) in gpu_kernels._INTERVALS.items()}))
    assert covered.loc[["elementwise", "softmax"], "cover"].between(0.84, 0.96).all(), covered
    assert covered.loc["softmax", "cover_one_interval"] < 0.8 and covered.loc["elementwise", "cover_one_interval"] > 0.94
    saved = CostModel("t4", {}, {"memory forward": part}, chip).save(tmp_path / "m.json.gz")
    answer = CostModel.load(saved).predict(rows.assign(**{"pass": "forward"}))
    half = np.log(answer["high_ms"] / answer["predicted_ms"])
    for op, own in rows.groupby("op").groups.items():
        interval = part.families.get(op, Interval(part.edges_ms, part.halves))
        assert half[own].to_numpy() == pytest.approx(interval.half(answer["predicted_ms"][own].to_numpy()))
    assert half[rows["op"] == "softmax"].min() > 3 * half[rows["op"] == "elementwise"].max()
    tuned = fine_tuned(CostModel.load(saved), rows.assign(latency_ms=2 * rows["latency_ms"], status="ok", verdict="stable", **{
        "pass": "forward", "hardware_id": "h", "device": "d", "dtype": "fp32", "latency_type": "kernel", "cache": "warm",
        "threads": 1}))
    assert not tuned.parts["memory forward"].families, "its intervals are those of the rows that corrected it"


def test_windows_are_fine_tuned_by_a_factor(model):
    """A depthwise convolution takes 3 times what the roofline says: from 40 rows of it, others are predicted."""
    memory = replace(model.parts["sgemm forward"], features=[], ranges={}, kinds=[],
                     regressor=Rates(["move_ms", "move_missed_ms", "call"], np.array([1.0, 0.0, 0.01])))
    parts = {**model.parts, "memory forward": memory, "window forward": transfer._window(memory)}
    gpu, draw = replace(model, parts=parts), np.random.default_rng(0)
    size, channels = 2 * draw.integers(7, 56, 80), 16 * draw.integers(1, 40, 80)
    elements = 32.0 * channels * size ** 2
    rows = pd.DataFrame({"op": "conv2d", "pass": "forward", "batch": 32, "in_channels": channels, "out_channels": channels,
                         "groups": channels, "height": size, "width": size, "kernel_h": 3, "kernel_w": 3, "padding_h": 1,
                         "padding_w": 1, "flops": 18 * elements, "bytes": 8 * elements, "status": "ok", "verdict": "stable",
                         "hardware_id": "here", "device": "cuda:0", "threads": 1, "dtype": "fp32", "latency_type": "kernel",
                         "cache": "warm"})
    before = gpu.predict(rows)["predicted_ms"].to_numpy()
    rows["latency_ms"] = 3 * before
    tuned = fine_tuned(gpu, rows.head(40))
    assert tuned.predict(rows)["predicted_ms"].to_numpy() == pytest.approx(3 * before)
    assert tuned.parts["sgemm forward"].correction.mean == pytest.approx(np.log(3)), "as that of the others"


# ---------------------------------------------------------------------------------------------- convolutions in fp32


def conv_row(batch, ins, outs, size, kernel=3, stride=1, before=0):
    """Return a square convolution as what features are made of."""
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    pixels, window = batch * out * out, kernel * kernel * ins
    axes = {f"{what}_{axis}": value for what, value in
            (("kernel", kernel), ("stride", stride), ("padding", kernel // 2)) for axis in "hw"}
    sizes = {"batch": batch, "in_channels": ins, "out_channels": outs, "height": size, "width": size, "before": before, **axes}
    return features.one("conv2d", sizes, 2.0 * pixels * window * outs,
                        4.0 * (batch * ins * size * size + window * outs + pixels * outs))


@pytest.mark.parametrize("sizes, block, blocks", [((5, 119, 758, 24), (1, 4, 8), 720), ((38, 893, 326, 5), (2, 4, 4), 209)])
def test_blocks_are_those_of_the_published_grids(sizes, block, blocks):
    """The grids of cuDNN's kernels tile148t on the V100 (120 x 3 x 2) and tile244n on the P4 (209), as NeuSight published."""
    chip = Chip.of(load_devices()["v100-pcie-32gb"], "fp32")
    row = conv_row(*sizes)
    ways = features_gpu._ways(row, features_gpu._gemm(row), chip)
    assert float(ways.blocks[block]) * chip.multiprocessors == pytest.approx(blocks)
    assert float(ways.moved) > 0 and float(ways.best[1]) < float(ways.best[0])


@pytest.mark.parametrize("kernel, stride", [(3, 2), (5, 1)])
def test_winograd_takes_windows_of_3_in_steps_of_one(kernel, stride):
    chip = Chip.of(load_devices()["v100-pcie-32gb"], "fp32")
    row = conv_row(8, 64, 64, 56, kernel, stride)
    ways = features_gpu._ways(row, features_gpu._gemm(row), chip)
    assert float(ways.moved) == 0 and len({float(time) for time in ways.best}) == 1


@pytest.fixture(scope="module")
def late_calls():
    """Give convolutions of known times, each call the longer the more were measured before: 0.1 ms a thousand."""
    draw, chip, rows = np.random.default_rng(0), Chip.of(load_devices()["v100-pcie-32gb"], "fp32"), []
    for before in range(400):
        row = conv_row(*(int(2 ** value) for value in draw.uniform([0, 4, 4, 3], [4, 8, 8, 6])), before=before * 10)
        times = features_gpu.terms(row, "convolution", chip)
        rows.append({**row, "true_ms": 0.05 + 1.5 * float(times["planned_ms"]) + float(times["move_ms"])})
    facts = {"status": "ok", "verdict": "noisy", "hardware_id": "v100", "device": "cuda:0", "dtype": "fp32", "cache": "warm",
             "latency_type": "end_to_end", "threads": 1, "latency_iqr_ms": np.nan, "config": "x", "pass": "forward"}
    table = pd.DataFrame(rows).assign(**facts)
    return table.assign(latency_ms=table["true_ms"] + table["before"] / 1e4)


def test_what_earlier_calls_cost_is_not_answered(late_calls):
    """A question is one of a fresh process; the table's own rows are answered with what they were measured after."""
    chip = Chip.of(load_devices()["v100-pcie-32gb"], "fp32")
    fitted = fitting.fit(late_calls, {"dtype": "fp32"}, chip)
    late = late_calls[late_calls["before"] > 2000]
    fresh = fitted.predict(late.assign(before=0))["predicted_ms"] / late["true_ms"]
    as_measured = fitted.predict(late)["predicted_ms"] / late["latency_ms"]
    assert abs(as_measured - 1).mean() < 0.05 and abs(fresh - 1).mean() < 0.1
    assert (late["latency_ms"] / late["true_ms"]).median() > 1.3  # as much as an answer would be off


def test_convolutions_are_counted_in_the_order_of_the_table():
    table = pd.DataFrame({"op": ["linear", "conv2d", "linear", "conv2d", "conv2d"]})
    assert list(training._in_order(table)["before"]) == [0, 0, 0, 1, 2]
