"""Published data: each original's layout, its known numbers, and what is refused."""

import zipfile

import pandas as pd
import pytest

from lib import files, paths, store
from lib.cli.data import KINDS
from lib.predict import published
from lib.predict.published import aiconfigurator, energaizer, kernels
from lib.work import networks
from lib.work.graph import capture
from tests import refusal, refused

CONV = ("OPName,Latency,Device,Kernels,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
        "conv,0.881,Tesla T4,k,38,893,326,3,5,1,1\nconv,0,Tesla T4,k,1,8,16,1,14,2,0\n")
BMM = "OPName,Latency,Device,Kernels,B,M,N,K\nbmm,0.035,Tesla T4,k,13,27,15,29\n"
LINEAR = "OPName,Latency,Device,Kernels,B,M,N,K\nlinear,0.066,Tesla T4,k,1,58,13,141\n"
ROWS = "OPName,Latency,Device,B,H\nx,0.0325,Tesla T4,127,168\n"
SWEPT = ("Batch size,In Channels,Out Channels,Kernel Size,Stride,Width,Height,Flops,Latency,Latency Type\n"
         "1,1,16,3,2,32,32,73728,0.00717,external\n1,1,16,3,2,64,32,147456,0.0081,internal\n")


@pytest.fixture
def neusight(tmp_path):
    folder = tmp_path / "neusight"
    rowwise = dict.fromkeys(("add", "mul", "div", "pow", "relu", "gelu", "tanh", "softmax", "ln"), ROWS)
    for op, text in {"conv": CONV, "linear": LINEAR, "bmm": BMM, **rowwise}.items():
        (folder / op).mkdir(parents=True)
        (folder / op / "Tesla T4.csv").write_text(text)
    return folder


@pytest.fixture
def swept(home):
    """Give the path of a sweep of convolutions."""
    path = home / "results_convolution.csv"
    path.write_text(SWEPT)
    return path


def test_neusight_is_read_with_its_own_names(neusight):
    table = kernels.neusight(neusight)["t4"]
    assert set(table["op"]) == {"conv2d", "linear", "bmm", "elementwise", "activation", "softmax", "layer_norm"}
    (linear,), (batched,) = (table[table["op"] == op].to_dict("records") for op in ("linear", "bmm"))
    assert (linear["gemm_m"], linear["gemm_k"], linear["gemm_n"], linear["flops"]) == (58, 13, 141, 2 * 58 * 13 * 141), \
        "N is the contraction"
    assert batched["bytes"] == 4 * 13 * (27 * 15 + 15 * 29 + 27 * 29)
    assert (table["status"] == "failed").sum() == 1, "a time of zero is no time"
    kinds = table[table["op"].isin(("elementwise", "activation"))].set_index("kind")
    elements, two, three = 127 * 168, ("relu", "gelu", "tanh"), ("add", "mul", "div", "pow")  # matrices that are moved
    assert kinds["bytes"].to_dict() == {kind: 4 * (2 if kind in two else 3) * elements for kind in (*two, *three)}
    assert set(table["latency_type"]) == {"end_to_end"}


def test_the_original_sweep_is_checked_against_its_shapes(swept):
    table = kernels.pytorch_scheduler(swept)["v100-pcie-32gb"]
    assert sorted(table["latency_type"]) == ["end_to_end", "kernel"]
    swept.write_text(SWEPT.replace("147456", "147457"))
    with refused("1 rows state FLOPs that their shapes do not have, the first in line 3"):
        kernels.pytorch_scheduler(swept)


def perf(folder, version="1.0.0", **columns):
    """Write kernels as aiconfigurator publishes them, with other columns; return the path."""
    path = files.folder(folder / "h200_sxm/gemm/trtllm" / version) / "gemm_perf.parquet"
    columns = {"gemm_dtype": ["bfloat16", "fp8"], "m": 64, "n": 128, "k": 256, "latency": 2.0, "sauce": 1, **columns}
    pd.DataFrame(columns).to_parquet(path)
    return path


def test_aiconfigurator_takes_the_newest_version(tmp_path):
    for version, latency in (("1.10.0rc9", 9.0), ("1.10.0rc10", 8.0), ("1.10.0", 2.0), ("1.9.0", 5.0)):
        perf(tmp_path, version, latency=latency, m=[64, 0])  # what is not read may be anything
    table = aiconfigurator.gemms(tmp_path)["h200-sxm"]
    assert list(table["latency_ms"]) == [2.0]
    assert table["dtype"].iloc[0] == "bf16"
    assert table["bytes"].iloc[0] == 2 * (64 * 256 + 256 * 128 + 64 * 128)
    with refused("has no <gpu>/gemm/trtllm"):
        aiconfigurator.gemms(tmp_path / "h200_sxm")


def test_a_wheel_of_aiconfigurator_is_read_as_its_folder(tmp_path):
    path = perf(tmp_path)
    inside = "aiconfigurator_core/systems/data"
    wheel = tmp_path / "aiconfigurator_core-0.12.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, f"{inside}/{path.relative_to(tmp_path)}")
        for name in ("gemm/../../evil_perf.parquet", "notes.txt"):
            archive.writestr(f"{inside}/h200_sxm/{name}", "x")
    with aiconfigurator.data_folder(wheel) as folder:
        assert len([file for file in folder.rglob("*") if file.is_file()]) == 1
    assert not folder.exists()
    pd.testing.assert_frame_equal(*(aiconfigurator.gemms(source)["h200-sxm"] for source in (wheel, tmp_path)))


def test_what_cannot_be_imported(tmp_path):
    assert tuple(published.SOURCES) == KINDS
    assert "did you mean neusight?" in refusal("import", "neusigt", tmp_path)
    with refused("has no <operator>/<GPU>.csv"):
        kernels.neusight(tmp_path)
    (tmp_path / "conv").mkdir()
    (tmp_path / "conv/Tesla T9.csv").write_text(CONV)
    with refused("no device 'Tesla T9' in params/devices.yaml"):
        kernels.neusight(tmp_path)


@pytest.mark.parametrize("columns, what", [
    ({"m": [-1, 1]}, "as m; it is a whole number from 1"),
    ({"n": [[1], [2]]}, "as n")])
def test_damaged_parquet_of_others_is_refused_in_one_line(tmp_path, columns, what):
    path = perf(tmp_path, **columns)
    with refused(what):
        aiconfigurator.gemms(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    with refused("is not readable Parquet"):
        aiconfigurator.gemms(tmp_path)


def test_an_import_replaces_an_import_and_a_files_name_leads_nowhere_else(swept):
    for _ in range(2):
        ((path, rows),) = published.import_tables("pytorch-scheduler", swept).items()
        assert len(store.read(path, "sweep")) == rows == 2
    assert path == paths.IMPORTED / "v100-pcie-32gb/sweeps/results_convolution/sweep.parquet"
    (odd,) = published.import_tables("pytorch-scheduler", swept.rename(swept.with_name("...csv")))
    assert odd.parents[1] == path.parents[1]


@pytest.mark.parametrize("latency", ["1e-320", "-1"])
def test_what_can_be_no_time_is_a_failed_row(tmp_path, latency):
    path = tmp_path / "y.csv"
    path.write_text("In Channels,Out Channels,Kernel Size,Stride,Input Size,Flops,Latency\n1,16,3,1,32,294912,0.01\n"
                    f"1,16,3,1,32,294912,{latency}\n")
    (table,) = kernels.pytorch_scheduler(path).values()
    assert table["status"].tolist() == ["ok", "failed"]
    assert table["latency_ms"].isna().tolist() == [False, True]


ENERGAIZER = """workload,energy,time,avg_freq,temp
bertmodel_large_pbf16_b8_s128_modeprefill_freq900_iter2239.csv,1.5,14.0,900,60
optmodel_opt-1p3b_pfp32_b2_s512_modeprefill_attneager_freq1410_iter12.csv,9.0,50.0,1250.5,60
resnet101__pbf16_b16_freq900_iter2437.csv,1.4,13.0,900,61
"""


def test_energaizers_workloads_are_networks_with_their_settings(tmp_path):
    (tmp_path / "dvfs.csv").write_text(ENERGAIZER)
    bert, opt, resnet = energaizer.read(tmp_path / "dvfs.csv").to_dict("records")
    assert bert == {"device": "a100-pcie-40gb", "model": "hf:bert-large", "input": "128:int64", "dtype": "bf16",
                    "batch_size": 8, "clock_mhz": 900, "mean_mhz": 900, "measured_ms": 14.0, "energy_j": 1.5,
                    "power_w": pytest.approx(1500 / 14)}
    assert (opt["model"], opt["dtype"], opt["clock_mhz"], opt["mean_mhz"]) == ("hf:opt-1.3b", "fp32", 1410, 1250.5)
    assert (resnet["model"], resnet["input"], resnet["batch_size"]) == ("resnet101", "", 16)
    (tmp_path / "a10.csv").write_text(ENERGAIZER.replace("bertmodel_large", "nomodel_large"))
    with refused("unknown workload 'nomodel_large_pbf16_b8.*networks are: resnet101_, bertmodel_large"):
        energaizer.read(tmp_path / "a10.csv")
    with refused("is no file of EnergAIzer: a100.csv, a10.csv, dvfs.csv"):
        energaizer.read(tmp_path / "other.csv")


@pytest.mark.parametrize("model, sample, millions", [
    ("hf:bert-large", "", 335), ("hf:gpt2", "", 124), ("hf:opt-1.3b", "", 1316), ("hf:qwen2-1.5b", "", 1544),
    ("hf:vit-large", "", 304), ("hf:mobilevit-small", "", 5), ("resnet101", "", 45)])
def test_energaizers_networks_have_their_published_sizes(tmp_path, model, sample, millions):
    network = networks.network(energaizer.write_configs(tmp_path)[model], 1, sample)
    weights = sum(weight.numel() for weight in capture.prepared(network).parameters())
    assert round(weights / 1e6) == pytest.approx(millions, abs=2)
