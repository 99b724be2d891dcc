"""The models of GPUs: bounded wherever they are asked, ordered as the cards are, honest about whom they were learned of."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import pandas as pd
import pytest

from lib.config.definitions import load_devices
from lib.predict import registry, training, transfer
from lib.predict.advice.query import Answer, CapturedQuery
from lib.predict.evaluation import gpu_kernels
from lib.predict.gpu import form
from lib.predict.gpu.model import GpuModel
from lib.predict.operators import features, features_gpu, fitting, gradients, inputs
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.features_gpu import Chip
from lib.predict.operators.regressors import Rates
from lib.predict.operators.validation import matrices_of, shapes_of
from lib.work.graph import spaces
from lib.work.run_config import RunConfig

VENDORS, DTYPES = load_devices(), ("fp32", "bf16")
T4, V100 = (Chip.of(VENDORS[name], "fp32") for name in ("t4", "v100-pcie-32gb"))
FRAMES = partial(inputs.frames, chip=T4)  # terms and features of rows
FACTS = {"pass": "forward", "layout": "nt", "status": "ok", "verdict": "noisy", "hardware_id": "published:t4",
         "device": "cuda:0", "dtype": "fp32", "cache": "warm", "latency_type": "kernel", "threads": 1, "latency_iqr_ms": np.nan,
         "config": "x", "software_id": "x"}


def products(m, n, k, item=4, batch=1, **facts):
    """Return GEMMs as rows of a ``sweep`` table, with their FLOPs and compulsory bytes."""
    sizes = {"batch": batch, "gemm_m": np.atleast_1d(m), "gemm_n": n, "gemm_k": k}
    work = {"flops": 2.0 * batch * m * n * k, "bytes": item * batch * (1.0 * m * k + k * n + m * n)}
    return pd.DataFrame({"op": "linear", **FACTS, **sizes, **work, **facts})


def convolution(passes="forward", kernel=3, stride=1, **sizes):
    """Return a square convolution of 28 x 28 pixels unless ``sizes`` say otherwise, with its counted work, as a row."""
    p = {"batch": 8, "in_channels": 64, "out_channels": 64, "height": 28, "width": 28, "groups": 1, "bias": 0, "input_grad": 1,
         "layout": "contiguous", **{f"{name}_{axis}": value for axis in "hw" for name, value in (
             ("kernel", kernel), ("stride", stride), ("padding", kernel // 2), ("dilation", 1))}, **sizes}
    flops, moved = spaces.work(spaces.config("conv2d", p, passes=passes).ops())
    return {"op": "conv2d", "pass": passes, **p, "flops": flops, "bytes": moved}


def roof_ms(table, chip):
    return np.maximum(table["flops"] / chip.flops_per_ms, table["bytes"] / chip.bytes_per_ms)


@cache
def shipped(device, dtype="fp32"):
    return CostModel.load(registry.path_of(device, dtype, registry.SHIPPED))


@pytest.fixture(scope="module")
def gemms():
    """Give a table of GEMMs with known times: a launch, and half of the roof beyond it."""
    draw = np.random.default_rng(0)
    table = products(*(2.0 ** draw.uniform(4, 11, 400) // 1 for _ in range(3)))
    return table.assign(latency_ms=0.01 + 2 * roof_ms(table, T4) * draw.normal(1, 0.03, 400))


# ---------------------------------------------------------------------------------------------- what is shipped


@pytest.fixture(scope="module")
def published():
    """Predict two networks on each GPU whose kernels were measured."""
    rows, swept = [], {device for device, _ in registry.model_files(shipped=True)}
    gpus = {dtype: [gpu for gpu in registry.for_devices([], dtype) if gpu.device in swept] for dtype in DTYPES}
    for dtype, network, batch in product(DTYPES, ("vit_b_16", "resnet50"), (1, 64)):
        captured = CapturedQuery(RunConfig(network, batch, dtype=dtype))
        for gpu in gpus[dtype]:
            answer = Answer(captured, gpu)
            row = answer.columns
            rows.append({"network": network, "batch_size": batch, **row, "roof_ms": answer.passes.provenance.gpu.roof_ms,
                         "launches_ms": answer.passes.launches_ms})
    return pd.DataFrame(rows)


def test_no_answer_is_far_from_its_roof(published):
    """Not beyond 8 times roof and launches; nor below half of the roof, as far as caches and Winograd's FLOPs can reach."""
    most, least = 8 * (published["roof_ms"] + published["launches_ms"]), 0.5 * published["roof_ms"]
    assert published["predicted_ms"].between(least, most).all()


def test_no_kernel_is_faster_than_the_stated_peak(monkeypatch):
    table = pd.concat([products(2048, 2048, 2048), pd.DataFrame([convolution(), convolution(kernel=1)])])
    model = registry.predictor("h100-sxm", "fp32").model
    monkeypatch.setattr(CostModel, "_answers", lambda self, row, names: [
        np.full(len(names), 1e-9), np.full(len(names), 0.5), np.zeros(len(names), bool), np.full(len(names), "", object)])
    answer, flops = model.predict(table), table["flops"].to_numpy()
    assert answer["predicted_ms"].tolist() == pytest.approx((flops * [1, 0.25, 1] / 67e9).tolist()), "67 TFLOP/s; Winograd"
    assert answer["predicted_ms"].iloc[0] == pytest.approx(0.25642, rel=1e-4)
    assert (answer["high_ms"] / answer["predicted_ms"]).tolist() == pytest.approx([np.exp(0.5)] * 3), "its range moves with it"


def test_no_product_in_a_network_is_faster_than_the_stated_peak(monkeypatch):
    def passes():
        return Answer(CapturedQuery(RunConfig("vit_b_16", 64)), registry.predictor("h100-sxm", "fp32")).passes

    usual_ms = passes().predicted_ms
    monkeypatch.setattr(GpuModel, "weights", lambda *_: np.append(np.full(form.SIZE - 3, 50.0), [-60.0] * 3))
    peak_ms = 64 * 17.4e9 * 2 / 67e9  # 17.4 G multiply-adds a picture, without the convolution
    assert passes().predicted_ms == pytest.approx(peak_ms, rel=0.03) and peak_ms < usual_ms


@pytest.mark.parametrize("dtype", DTYPES)
def test_faster_cards_are_not_slower(published, dtype):
    """Ordered are two cards of which one has both the higher peak rate and the higher bandwidth, by a fifth or more.

    A card that is bound by launches takes the time of the hosts on which it was measured, which may be slower.
    """
    rows = published[published["dtype"] == dtype]
    cards = [VENDORS[name] for name in rows["device"]]
    rows = rows.assign(gflops=[card.peak_gflops[dtype] for card in cards], gbps=[card.peak_gbps for card in cards])
    pairs = rows.merge(rows, on=["network", "batch_size"], suffixes=("", "_slow"))
    pairs = pairs.query("gflops >= 1.2 * gflops_slow and gbps >= 1.2 * gbps_slow")
    allowed = np.where(pairs["bound"] == "launch", 1.6, 1.0)
    assert len(pairs) > 50
    assert not len(wrong := pairs[pairs["predicted_ms"] > allowed * pairs["predicted_ms_slow"]]), wrong


def test_answers_say_of_whom_they_were_learned(published):
    source = published.set_index(["dtype", "device", "network", "batch_size"])["source"]
    assert source["fp32", "v100-pcie-32gb", "vit_b_16", 64] == "learned from networks on this card"
    assert source["bf16", "b200", "resnet50", 64] == "learned from networks on other cards"


def test_what_is_far_out_of_range_stays_in_proportion():
    """A GEMM of 4 million rows, and one of 1 element, take no more than 8 times their roof and a launch.

    The P4's were measured while it was throttled, large ones at a tenth of the peak.
    """
    sizes = np.array([(4e6, 64, 64), (4e6, 4096, 4096), (1, 1, 1), (1, 3e5, 64), (4096, 4096, 3e5)]).T
    for device, dtype in registry.model_files(shipped=True):
        if device.startswith("cpu-") or device == "a100-pcie-80gb":
            continue  # no GEMM was published for it
        model = shipped(device, dtype)
        model = model if model.chip else model.on(VENDORS["h100-sxm"], dtype)
        table = products(*sizes, item=model.chip.item).drop(columns=["batch", "layout"])
        answer, roof = model.predict(table), roof_ms(table, model.chip)
        assert answer["out_of_range"].all()
        most = 11 if device == "p4" else 8
        assert (answer["predicted_ms"] < most * (roof + 2 * model.facts["launch_ms"])).all(), (device, answer.assign(roof=roof))


# ---------------------------------------------------------------------------------------------- how it works


def test_a_gpu_is_completed_by_siblings_before_any_gpu(tmp_path):
    """The H200's GEMMs; rates of memory-bound work, of any GPU in fp32, with launches."""
    files = {(device, "bf16"): registry.path_of(device, "bf16", registry.SHIPPED) for device in ("h200-sxm", transfer.ANY_GPU)}
    costs = dict.fromkeys(inputs.names("memory forward", T4)[0], 0.0) | {"move_ms": 0.5, "move_beyond_8us": 0.75, "call": 0.05}
    any_gpu = shipped(transfer.ANY_GPU)
    memory = replace(any_gpu.parts["memory forward"], regressor=Rates(list(costs), np.array(list(costs.values()))))
    files[transfer.ANY_GPU, "fp32"] = replace(any_gpu, parts={"memory forward": memory}).save(tmp_path / "fp32")
    card = VENDORS["h100-pcie"]
    found = transfer.gpu_model(card, "bf16", files, CostModel.load)
    assert {name: part.origin for name, part in found.parts.items()} == {
        "gemm forward": "h200-sxm", "memory forward": "any-gpu fp32", "window forward": transfer.ANALYTIC}
    regressor = found.parts["memory forward"].regressor
    cost = dict(zip(regressor.terms, regressor.costs, strict=True))
    assert cost["move_ms"] == 1.25 and cost["call"] == 0.003, "a rate carries over to kernel times, an eager launch does not"
    assert transfer.gpu_model(VENDORS["mi300x"], "bf16", {}, CostModel.load) is None


def test_folds_share_no_shape_and_score_every_row_once(gemms):
    """Rates are fitted to all rows alike: how far a row's rounds disagree weighs it for trees alone."""
    rows = pd.concat([gemms, gemms.assign(latency_ms=gemms["latency_ms"] * 1.1)], ignore_index=True)
    part = fitting.fit_part(rows.drop(columns="latency_iqr_ms"), FRAMES, shapes_of(rows), "rates")
    folds = part.held_out["fold"].groupby(shapes_of(rows).to_numpy())
    assert (folds.min() == folds.max()).all() and len(set(part.held_out["fold"])) > 1
    assert len(part.held_out.dropna()) == len(rows) and isinstance(part.regressor, Rates)


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "t4"])
def test_element_wise_work_takes_what_it_moves(device):
    """Not its FLOPs: gelu has 5 an element, relu 1. Beyond the training range time grows as the bytes do."""
    elements = np.array([5e7, 5e7, 5e7, 5e8, 5e9])
    rows = pd.DataFrame({"op": "activation", "pass": "forward", "kind": "relu gelu mish gelu gelu".split(), "inplace": 0,
                         "elements": elements, "flops": elements * [1, 5, 6, 5, 5], "bytes": 8 * elements})
    relu, gelu, mish, many, more = shipped(device).predict(rows)["predicted_ms"]
    assert gelu == pytest.approx(relu, rel=0.05)
    assert more == pytest.approx(10 * many, rel=0.03)
    assert mish == pytest.approx(relu, rel=0.2), "a kind that was never measured"


@pytest.mark.parametrize("dtype, part, split, devices", [
    ("fp32", "sgemm forward", gpu_kernels.SHAPES, {"v100-pcie-32gb", "t4", "p100-pcie-16gb", "a100-pcie-40gb", "p4"}),
    ("bf16", "gemm forward", gpu_kernels.MATRICES, {"h200-sxm", "h100-sxm", "b200", "l40s", "a100-sxm-80gb"})])
def test_published_scores_of_kernels_are_those_of_the_shipped_models(dtype, part, split, devices):
    table = pd.read_csv(gpu_kernels.path(dtype))
    ours = table[table["learner"] == "this model"].assign(error=table["mape"] * table["n"])
    products = ours[(ours["split"] == split.format(5)) & ours["operator"].isin(("GEMM", "batched GEMM"))]
    parts = {device: shipped(device, dtype).parts[part] for device in devices}
    assert products.groupby("device")["error"].sum().to_dict() == pytest.approx(
        {device: part.scores["mape"] * part.rows for device, part in parts.items()}, rel=1e-3)
    left_out = ours[(ours["split"] == gpu_kernels.DEVICE) & (ours["operator"] == "GEMM")].set_index("device")["mape"]
    assert set(left_out.index) == devices | {"mean"}
    assert left_out["mean"] == pytest.approx(left_out.drop("mean").mean(), rel=1e-3)


@pytest.mark.nightly
def test_families_of_one_part_have_intervals_of_their_own(tmp_path):
    """Softmax scatters ten times as far as additions do; layer norm has too few rows, and the interval of all."""
    draw, counts = np.random.default_rng(0), [400, 200, 40]
    size = 2.0 ** draw.uniform(6, [[13, 12]] * 640) // 1
    moved, noise = 8 * size.prod(axis=1), draw.normal(0, np.repeat([0.02, 0.2, 0.02], counts))
    ops, ms = np.repeat(["elementwise", "softmax", "layer_norm"], counts), 0.01 + 2 * moved / T4.bytes_per_ms
    rows = pd.DataFrame({**FACTS, "layout": "", "op": ops, "kind": "add", "rows": size[:, 0], "columns": size[:, 1],
                         "flops": moved / 8, "bytes": moved, "latency_ms": ms * np.exp(noise)})
    part = fitting.fit_part(rows, FRAMES, shapes_of(rows))
    assert set(part.families) == {"elementwise", "softmax"}
    shown = part.held_out
    cover = rows["latency_ms"].between(shown["low_ms"], shown["high_ms"]).groupby(rows["op"]).mean()
    assert cover[["elementwise", "softmax"]].between(0.84, 0.96).all(), cover
    saved = CostModel.load(CostModel("t4", {}, {"memory forward": part}, T4).save(tmp_path / "m.json.gz"))
    answer = saved.predict(rows)
    half = np.log(answer["high_ms"] / answer["predicted_ms"]).groupby(ops)
    assert half.min()["softmax"] > 3 * half.max()["elementwise"]


def backward(**sizes):
    return convolution("backward", **{"batch": 4, "in_channels": 64, "out_channels": 128, **sizes})


@pytest.mark.parametrize("input_grad", [0, 1])
@pytest.mark.parametrize("stride, kernel, channels, batch", [(1, 3, 16, 1), (2, 5, 48, 3), (4, 1, 64, 2)])
def test_gradients_share_the_work_and_multiply_as_much_as_they_say(stride, kernel, channels, batch, input_grad):
    row = backward(input_grad=input_grad, batch=batch, in_channels=channels, out_channels=48, kernel=kernel, stride=stride)
    several = [one for _, _, one in gradients.as_forward_kernels(features.columns(pd.DataFrame([row])), V100)]
    assert len(several) == 1 + input_grad
    assert sum(one.flops.item() for one in several) == pytest.approx(row["flops"])
    for one in several:
        assert 2.0 * np.prod(features_gpu.gemm_of(one)) == pytest.approx(one.flops.item())
    assert several[-1].op == "matmul", "weights: a product over all samples and pixels"
    assert several[-1].gemm_k == row["batch"] * (28 // stride) ** 2


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "t4"])
def test_a_backward_pass_takes_two_forward_kernels_and_says_so(device):
    model = registry.predictor(device, "fp32").model
    shapes = ({}, {"input_grad": 0}, {"stride": 2}, {"in_channels": 128, "groups": 128})
    table = pd.DataFrame([backward(**shape) for shape in shapes])
    answer, work = model.predict(table), 1 + table["input_grad"]
    share = (answer["predicted_ms"] / model.predict(table.assign(**{"pass": "forward"}, flops=table["flops"] / work))[
        "predicted_ms"]).to_numpy()
    assert (share[[0, 2, 3]] > 1.2).all() and (share < 6).all() and share[1] < share[0]
    assert answer["out_of_range"].all() and (answer["origin"] != "").all()
    assert (answer["low_ms"] < answer["predicted_ms"]).all() and (answer["predicted_ms"] < answer["high_ms"]).all()



def test_what_was_measured_backward_answers_for_itself():
    model, table = registry.predictor("v100-pcie-32gb", "fp32").model, pd.DataFrame([backward()])
    measured = replace(model, parts={**model.parts, "convolution backward": model.parts["convolution forward"]})
    answer, expected = measured.predict(table), model.predict(table.assign(**{"pass": "forward"}))
    assert answer["predicted_ms"][0] == pytest.approx(expected["predicted_ms"][0])
    assert answer["origin"][0] == ""



@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_device_whose_entry_states_no_cache_has_features(dtype):
    """Such an entry of params/devices.yaml is allowed; it ended in a ZeroDivisionError."""
    chip = Chip.of(VENDORS["l40s"].model_copy(update={"cache_mb": 0.0}), dtype)
    for table in inputs.frames(products(8, 1024, 1024), chip):
        assert np.isfinite(table.to_numpy()).all()



@pytest.mark.slow
def test_no_fold_splits_the_ms_of_one_matrix():
    sizes = np.array([(m, n, k) for n, k in np.random.default_rng(0).integers(1, 64, (12, 2)) * 64 for m in (1, 16, 17, 256)])
    table = products(*sizes.T, item=2, dtype="bf16", hardware_id="published:b200")
    table["latency_ms"] = 0.003 + table["bytes"] / 4e9
    model = training.gpu_model("b200", table, "aiconfigurator", "bf16")
    fold = model.parts["gemm forward"].held_out["fold"]
    split = fold.groupby(matrices_of(table)).agg(["min", "max"])
    assert (split["min"] == split["max"]).all() and set(fold) == {*range(5)}



def test_published_scores_of_gemms_on_gpus_left_out_are_those_of_any_gpu_and_better_than_baselines():
    table = pd.read_csv(gpu_kernels.path("bf16"))
    mape = table.set_index(["split", "device", "learner"])["mape"].sort_index()
    whole = shipped("any-gpu", "bf16").parts["gemm forward"]
    rows = table.query("split == @gpu_kernels.DEVICE and learner == 'this model' and device != 'mean'")
    assert rows.eval("mape * n").sum() / whole.rows == pytest.approx(whole.scores["mape"], rel=1e-3)
    assert mape[gpu_kernels.DEVICE, "mean"].idxmin() == "this model", "better than each baseline"

