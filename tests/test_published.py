"""Published data: each original's layout, its known numbers, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from lib import paths, store
from lib.errors import InputError
from lib.measure import importers
from lib.work.graph import spaces

CONV = ("OPName,Latency,Device,Kernels,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
        "conv,0.881,Tesla T4,k,38,893,326,3,5,1,1\nconv,0,Tesla T4,k,1,8,16,1,14,2,0\n")
BMM = "OPName,Latency,Device,Kernels,B,M,N,K\nbmm,0.035,Tesla T4,k,13,27,15,29\n"
LINEAR = "OPName,Latency,Device,Kernels,B,M,N,K\nlinear,0.066,Tesla T4,k,1,58,13,141\n"
ROWS = "OPName,Latency,Device,B,H\nx,0.0325,Tesla T4,127,168\n"


@pytest.fixture
def neusight(tmp_path):
    rowwise = ((op, ROWS) for op in ("add", "relu", "softmax", "ln"))
    for op, text in (("conv", CONV), ("linear", LINEAR), ("bmm", BMM), *rowwise):
        (tmp_path / op).mkdir()
        (tmp_path / op / "Tesla T4.csv").write_text(text)
    return tmp_path


def test_neusight_is_read_with_its_own_names(neusight):
    table = importers.neusight(neusight)["t4"]
    assert set(table["op"]) == {"conv2d", "linear", "bmm", "elementwise", "activation", "softmax", "layer_norm"}
    linear = table[table["op"] == "linear"].iloc[0]
    assert (linear["gemm_m"], linear["gemm_k"], linear["gemm_n"]) == (58, 13, 141), "N is the contraction"
    assert linear["flops"] == 2 * 58 * 13 * 141
    batched = table[table["op"] == "bmm"].iloc[0]
    assert (batched["batch"], batched["gemm_m"], batched["gemm_k"], batched["gemm_n"]) == (13, 27, 15, 29)
    assert batched["bytes"] == 4 * 13 * (27 * 15 + 15 * 29 + 27 * 29)
    assert (table["status"] == "failed").sum() == 1, "a time of zero is no time"
    assert set(table["latency_type"]) == {"end_to_end"}


@pytest.mark.parametrize(("batch", "ins", "outs", "kernel", "size", "stride", "padding"), [
    (2, 3, 8, 3, 16, 1, 1), (1, 8, 16, 1, 14, 2, 0), (2, 4, 4, 5, 17, 2, 2), (1, 2, 8, 2, 9, 4, 0)])
def test_flops_and_bytes_are_those_of_the_operator_itself(batch, ins, outs, kernel, size, stride, padding):
    values = {"batch": batch, "in_channels": ins, "out_channels": outs, "kernel_h": kernel, "height": size, "width": size,
              "stride_h": stride, "padding_h": padding}
    flops, moved = importers.convolution({name: np.array([value]) for name, value in values.items()}, 4)
    config = spaces.config("conv2d", {**values, "kernel_w": kernel, "stride_w": stride, "padding_w": padding})
    assert (flops[0], moved[0]) == spaces.work(config.ops())


def test_the_original_sweep_is_checked_against_its_shapes(tmp_path):
    path = tmp_path / "results_convolution.csv"
    path.write_text("Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type\n"
                    "1,1,16,3,2,32,32,73728,0.00717,external\n1,1,16,3,2,64,32,147456,0.0081,internal\n")
    table = importers.pytorch_scheduler(path)["v100-pcie-32gb"]
    assert sorted(table["latency_type"]) == ["end_to_end", "kernel"]
    path.write_text(path.read_text().replace("147456", "147457"))
    with pytest.raises(InputError, match="1 rows state FLOPs that their shapes do not have, the first in line 3"):
        importers.pytorch_scheduler(path)


def test_aiconfigurator_takes_the_newest_version(tmp_path):
    for version, latency in (("1.3.0rc10", 9.0), ("1.3.0rc20", 2.0), ("1.0.0", 5.0)):
        folder = tmp_path / "h200_sxm" / "gemm" / "trtllm" / version
        folder.mkdir(parents=True)
        pd.DataFrame({"gemm_dtype": ["bfloat16", "fp8"], "m": 64, "n": 128, "k": 256, "latency": latency}).to_parquet(
            folder / "gemm_perf.parquet")
    table = importers.aiconfigurator(tmp_path)["h200-sxm"]
    assert list(table["latency_ms"]) == [2.0]
    assert table["dtype"].iloc[0] == "bf16"
    assert table["bytes"].iloc[0] == 2 * (64 * 256 + 256 * 128 + 64 * 128)
    with pytest.raises(InputError, match="has no <gpu>/gemm/vllm"):
        importers.aiconfigurator(tmp_path, "vllm")


def test_imported_tables_are_valid_and_replaced(neusight, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "IMPORTED", tmp_path / "imported")
    for _ in range(2):
        path, rows = importers.bring_in("neusight", neusight)["t4"]
        assert len(store.read(path, "sweep")) == rows == 8
    assert store.read_json(path.with_name("sweep.meta.json"))["device"] == "t4"


def test_what_cannot_be_imported(tmp_path):
    with pytest.raises(InputError, match="needs the path"):
        importers.bring_in("neusight", None)
    with pytest.raises(InputError, match="is missing"):
        importers.bring_in("neusight", tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no <operator>/<GPU>.csv"):
        importers.neusight(tmp_path)
    (tmp_path / "conv").mkdir()
    (tmp_path / "conv" / "Tesla T9.csv").write_text(CONV)
    with pytest.raises(InputError, match="no device 'Tesla T9' in params/devices.yaml"):
        importers.neusight(tmp_path)
    (tmp_path / "conv" / "Tesla T9.csv").rename(tmp_path / "conv" / "Tesla T4.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="has no columns"):
        importers.neusight(tmp_path)
