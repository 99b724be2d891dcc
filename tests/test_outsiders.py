"""What outsiders measured: read as labels, checked, scored with the card left out; and what ships of it."""

import json
import math

import pandas as pd
import pytest
from openpyxl import Workbook

from lib import paths
from lib.predict import registry, training
from lib.predict.advice import advise_operator
from lib.predict.evaluation import outsiders
from lib.predict.published import labels
from lib.predict.trust import scoreboard
from tests import output_of, refused

GEMM = "matmul gemm_m=512 gemm_k=1024 gemm_n=1024 layout=nt"


def workbook(path, convolution=("R", "S", "pad_h", "pad_w", "Vertical stride", "Horizontal stride")):
    """Write a DeepBench workbook of one GEMM and three convolutions, one of them without a time and one without inputs."""
    book = Workbook()
    sheet = book.active
    sheet.title = "Results - FP32"
    for row in (["Dense Matrix Multiplication", None, "M", "N", "K", "A Transpose", "B Transpose", None, "Time (msec)"],
                [None, None, 1760, 16, 2048, "T", "N", None, 0.5], ["Convolution"],
                [None, None, "W", "H", "C", "N", "K ", *convolution, "Forward (msec)", "wrt Inputs (msec)",
                 "wrt Parameters (msec)"],
                [None, None, 700, 161, 1, 4, 32, 5, 20, 0, 1, 2, 2, 0.25, "N/A*", 0.5],
                [None, None, 14, 14, 8, 4, 32, 3, 3, 1, 1, 1, 1, 0.25, 0.25, 0.5],
                ["Recurrent Layers", None, "Hidden units"], [None, None, 1760, 16, 50, None, 3.0],
                ["All-Reduce", None, "Size # floats", "# chips / accelerator cards", None, "Mean All Reduce Time (msec)"],
                [None, None, 250_000, 8, None, 2.5], [None, None, 250_000, 16, 2, 9.0]):
        sheet.append(row)
    specs = book.create_sheet("Specs")
    specs.append(["GPU Model", "NVIDIA V100"])
    book.save(path)
    return path


def test_a_workbook_gives_products_in_rows_and_gradients_of_weights_and_of_both(tmp_path):
    table = labels.deepbench(workbook(tmp_path / "train.xlsx"))
    gemm, first, first_back, second, second_weights, second_back, exchange = table["model"]
    assert gemm == "matmul gemm_m=16 gemm_k=2048 gemm_n=1760 layout=nt", "M and N of a column-major product change places"
    assert "kernel_h=5 kernel_w=20 padding_h=0 padding_w=1" in first, "height first where the header says so"
    assert first_back == f"{first} input_grad=0" and second_weights == f"{second} input_grad=0"
    assert second_back == f"{second} input_grad=1"
    assert exchange == "all_reduce mb=1" and table["gpus"].tolist() == [*"111111", "8"], "not across machines"
    assert table["measured_ms"].tolist() == [0.5, 0.25, 0.5, 0.25, 0.5, 0.75, 2.5]
    assert table["mode"].tolist() == ["infer", "infer", "train", "infer", "train", "train", "infer"]
    assert set(table["device"]) == {"v100-sxm2-16gb"}, "of a DGX-1"
    swapped = labels.deepbench(workbook(tmp_path / "width.xlsx", ("S (Filter width)", "R (Filter height)", "pad_w", "pad_h",
                                                                  "Horizontal stride", "Vertical stride")))
    assert "kernel_h=20 kernel_w=5 padding_h=1 padding_w=0" in swapped["model"][1]


@pytest.mark.parametrize("name, device, dtype, gpus", [
    ("GeForce GTX 1080 Ti_single_model_inference_benchmark.csv", "GeForce GTX 1080 Ti", labels.DEFAULT, 1),
    ("GeForce RTX 2080 Ti_half_model_training_benchmark(2).csv", "GeForce RTX 2080 Ti", "fp16", 1),
    ("A100-SXM4-40GB_4_gpus__float_model_train_benchmark.csv", "A100-SXM4-40GB", labels.DEFAULT, 4)])
def test_repeats_of_a_card_are_their_median(tmp_path, name, device, dtype, gpus):
    path = tmp_path / name
    path.write_text("resnet18,vgg11\n1,9\n2,5\n100,7\n")
    table = labels.torchvision_cards(path)
    assert table["measured_ms"].tolist() == [2, 7]
    first = table.iloc[0]
    assert first["device"] == device and first["dtype"] == dtype and first["gpus"] == str(gpus)
    assert first["batch_size"] == 12 * gpus
    assert (first["mode"], first["includes"]) == (("infer", "h2d") if "inference" in name else ("train", "h2d zeroing"))


def test_steps_of_gavel_and_zeus(tmp_path):
    steps = {"v100": {"('ResNet-50 (batch size 16)', 1)": {"null": 8.0}, "('ResNet-50 (batch size 16)', 2)": {"null": 4.0},
                      "('LM (batch size 5)', 1)": {"null": 1.0}}, "k80": {"('ResNet-50 (batch size 64)', 1)": {"null": 0.0}}}
    path = tmp_path / "simulation_throughputs.json"
    path.write_text(json.dumps(steps))
    (row,) = labels.gavel(path).to_dict("records")
    assert row["model"] == "resnet50" and row["device"] == "v100-sxm2-16gb" and row["batch_size"] == "16"
    assert row["measured_ms"] == 125.0 and row["mode"] == "train"
    path = tmp_path / "summary_power_v100.csv"
    path.write_text("dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
                    "imagenet,resnet50,256,sgd,100,9999,90\nimagenet,resnet50,256,sgd,250,1281.167,90\nx,ncf,8,sgd,250,1,90\n")
    assert labels.power_limits(path)["model"].tolist() == ["resnet50", "resnet50", ""]
    (row,) = labels.zeus(path).to_dict("records")
    assert row["measured_ms"] == pytest.approx(256.0) and row["device"] == "v100-pcie-32gb"


def own_table(path, *rows, header="model,device,batch_size,measured_ms"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_that_cannot_be_judged_are_named_and_counted(tmp_path):
    own_table(tmp_path / "own.csv", f"{GEMM},v100-sxm2-16gb,,1.0", f"{GEMM},v100-sxm2-16gb,,0", f"{GEMM},v100-sxm2-16gb,,1e-5",
              f"{GEMM},abacus,,1.0", "matmul gemm_m=2,v100-sxm2-16gb,,1.0", "no_network,v100-sxm2-16gb,8,1.0")
    own_table(tmp_path / "types.csv", f"{GEMM},v100-sxm2-16gb,fp64,1.0", header="model,device,dtype,measured_ms")
    own_table(tmp_path / "gpus.csv", "resnet18,v100-sxm2-16gb,4,1.0", header="model,device,gpus,measured_ms")
    own_table(tmp_path / "wrong.csv", "a,1,2", header="model,measured_ms,colour")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    rows = outsiders.predicted(tmp_path)
    assert rows["measured"].tolist() == [1.0]
    counted = rows.attrs["left_out"]
    reasons = " ".join(counted)
    for words in ("no time in ms above 0", "above the peak rate", "no device named 'abacus'", "gemm_k", "no_network",
                  "no model answers in fp64", "unknown columns",
                  "networks on several devices are not scored"):
        assert words in reasons
    assert sum(counted.values()) == 8


def test_a_copy_of_another_cards_times_is_left_out(tmp_path):
    rows = [f"matmul gemm_m=512 gemm_k=1024 gemm_n={64 * n} layout=nt,{device},,{n + shift}" for n in range(1, 13)
            for device, shift in (("v100-sxm2-16gb", 0), ("t4", 0), ("p4", 0.5))]
    table = outsiders.read(own_table(tmp_path / "own.csv", *rows))
    assert set(table["device"][table["error"] == ""]) == {"v100-sxm2-16gb", "p4"}
    assert set(table["error"][table["device"] == "t4"]) == {"a copy of v100-sxm2-16gb's times, which plain CSV has, too"}


def test_a_damaged_workbook_is_one_line(tmp_path):
    whole = workbook(tmp_path / "whole.xlsx").read_bytes()
    for number, content in enumerate((b"", b"PK\x03\x04", whole[:len(whole) // 2], b"\0" * 64)):
        (tmp_path / f"{number}.xlsx").write_bytes(content)
        with refused("no readable workbook"):
            labels.deepbench(tmp_path / f"{number}.xlsx")
    book = Workbook()
    book.active.append(["nothing"])
    book.save(tmp_path / "other.xlsx")
    with refused("no sheet FP32.*it has: Sheet"):
        labels.deepbench(tmp_path / "other.xlsx")


def test_what_models_learned_from_is_no_outsider(tmp_path):
    path = tmp_path / "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv"
    path.write_text("model,module,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs,"
                    "infer_macts\nresnet18,resnet,224,1000,256,256,11,1.8,2.5\n")
    table = outsiders.read(tmp_path)
    assert table["error"].str.contains("models were trained on these rows").all() and table["device"][0] == "rtx-3090"


def test_tf32_is_told_from_fp32_by_the_card(tmp_path):
    for name in ("A100-SXM4-40GB_single_model_inference_benchmark.csv", "TITAN V_single_model_inference_benchmark.csv"):
        (tmp_path / name).write_text("resnet18\n1\n")
    table = outsiders.read(tmp_path, with_learned=True).set_index("device")
    assert table["dtype"].to_dict() == {"a100-sxm-40gb": "tf32", "titan-v": "fp32"}
    assert table["error"].to_dict() == {"a100-sxm-40gb": "", "titan-v": ""}


def test_a_users_time_is_set_against_what_advise_says(tmp_path):
    from lib.predict.advice import questions

    own_table(tmp_path / "own.csv", "resnet18,v100-pcie-32gb,8,9.0,infer", "resnet18,v100-pcie-32gb,8,50.0,train",
              header="model,device,batch_size,measured_ms,mode")
    rows = outsiders.predicted(tmp_path).sort_values("mode", ignore_index=True)
    asked = questions.answer(questions.from_table(pd.DataFrame(
        {"model": "resnet18", "device": "v100-pcie-32gb", "batch_size": 8, "mode": ["infer", "train"]})))  # taught nothing
    assert rows["predicted"].tolist() == pytest.approx(asked["predicted_ms"].tolist(), rel=1e-5), "all parts, and no more"
    assert (rows["high"] / rows["low"] > 1.3).all(), "of a stranger's board"


@pytest.mark.parametrize("content", ["", "model,device,measured_ms\nresnet18,abacus,1\n"])
def test_tables_without_a_predictable_label_end_in_words(tmp_path, content):
    (tmp_path / "own.csv").write_text(content or "model,measured_ms\nresnet18,1,2,3\n")
    assert outsiders.predicted(tmp_path).empty
    assert "no label could be predicted" in output_of("models", "--outsiders", str(tmp_path), status=1)


def test_the_command_scores_a_table_of_ones_own(tmp_path):
    path = own_table(tmp_path / "own.csv", f"{GEMM},v100-sxm2-16gb,,0.5", f"{GEMM},abacus,,1.0")
    output = output_of("models", "--outsiders", str(path))
    assert "v100-sxm2-16gb" in output and "plain CSV" in output and "under 0.2 ms" not in output
    own_table(path, f"{GEMM},v100-sxm2-16gb,,0.1")
    assert "see --all" in output_of("models", "--outsiders", str(path))
    assert "matmul, under 0.2 ms" in output_of("models", "--outsiders", str(path), "--all")


def test_networks_of_a_gpu_that_this_project_measured_are_labels_and_those_of_a_cpu_are_not():
    folder = paths.REFERENCE / "intel-xeon-8c-nvidia-h100-80gb-hbm3-f275c75e"
    table = outsiders.read(folder, with_learned=True)
    assert set(table["device"]) == {"h100-sxm"} and (table["error"] == "").all() and set(table["source"]) == {"this project"}
    assert set(table["dtype"]) == {"fp32", "bf16"} and table["model"].nunique() == 18
    with refused("no usable network of a GPU; those of CPUs are scored by models --errors"):
        labels.measured_networks(next(paths.REFERENCE.glob("amd*/networks/runtimes/networks.parquet")))
    both = outsiders.read(folder / "networks", paths.REFERENCE / "intel-xeon-2c-397e4cfa/networks")
    assert both["error"].str.contains("no usable network of a GPU").sum() == 1


def test_a_throttled_cards_products_answer_for_no_other():
    peak = 9.3e9  # FLOP/ms of a P100, which its power feeds

    def sweep(share):
        return pd.DataFrame({"op": "linear", "dtype": "fp32", "status": "ok", "verdict": "noisy", "flops": 1e11,
                             "latency_ms": 1e11 / (share * peak)}, index=range(5))

    assert training.throttled("p100-pcie-16gb", sweep(0.6)) and not training.throttled("p100-pcie-16gb", sweep(0.8))
    pascal = registry.for_devices(["gtx-1080-ti"], "fp32")[0].model
    assert pascal.parts["sgemm forward"].origin == "any-gpu" and pascal.parts["convolution forward"].origin == "p100-pcie-16gb"
    assert registry.for_devices(["p100-pcie-16gb"], "fp32")[0].model.parts["sgemm forward"].origin == ""


# ------------------------------------------------------------------------------------------------- what ships

def test_predictions_that_ship_are_those_of_today():
    rows = scoreboard.shipped()
    kernels = rows[(rows["what"] == scoreboard.KERNELS) & (rows["mode"] == "forward")]  # gradients: learned from other cards
    for row in kernels.groupby("device").sample(2, random_state=0).itertuples():
        op, *parameters = row.case.split()
        wanted = advise_operator.config(op, parameters, row.condition, row.mode)
        answer = advise_operator.advise(wanted, [row.device]).iloc[0]
        assert answer["predicted_ms"] == pytest.approx(row.predicted, rel=1e-3), (row.device, row.case)
        assert math.log(row.high / row.low) > 0.3, "no stranger's board is known to 15 %"


def test_networks_of_outsiders_were_predicted_without_their_cards():
    networks = scoreboard.shipped().query("what == @scoreboard.NETWORKS")
    assert set(networks["left_out"]) == {"families and the card"} and networks["source"].nunique() > 5
