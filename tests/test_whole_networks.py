"""Published throughputs of whole networks: the layout of timm's results, and what is refused."""

import pytest

from lib import paths, store
from lib.predict.published import timm
from tests import output_of, refused

NAME, TRAINING = "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090-dynamo.csv", "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv"
HEADER = ("model,module,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs,"
          "infer_macts\n")
ROWS = "resnet18,resnet,224,1024.0,250.0,256,11.7,1.82,2.48\nvit_tiny,vision_transformer,160,512.0,125.0,64,5.7,,\n"
TRAIN = ("model,module,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
         "a,b,512.0,500.0,256,128,2.04\n")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / NAME).write_text(HEADER + ROWS)
    (tmp_path / TRAINING).write_text(TRAIN)
    return tmp_path


def test_a_file_is_read_with_what_its_name_says(folder):
    table = timm.read(folder / NAME)
    facts = {"device": "rtx-4090", "network": "resnet18", "module": "resnet", "torch": "2.4.0", "precision": "amp_fp16",
             "layout": "nhwc", "compiled": True, "mode": "infer", "image_size": 224, "batch_size": 256, "latency_ms": 250.0}
    assert table.loc[0, list(facts)].to_dict() == facts
    assert table["gmacs"].isna().tolist() == [False, True], "what is not stated is empty"
    train = timm.read(folder / TRAINING).iloc[0]
    assert train["device"] == "rtx-3090" and train["mode"] == "train" and train["torch"] == "1.12"
    assert train["latency_ms"] == 500.0


def test_a_folder_becomes_a_table_a_device_and_a_second_import_replaces_the_first(folder, home):
    path = paths.IMPORTED / "rtx-4090/whole_networks/timm/whole_networks.parquet"
    for _ in range(2):
        assert f"{path}: 2 rows" in output_of("import", "timm", folder)
    assert len(store.read(path, "whole_networks")) == 2


@pytest.mark.parametrize("name, text, message", [
    ("benchmark-infer-int4-nchw-pt240-cu124-rtx4090.csv", HEADER + ROWS, "is not named as timm's results are"),
    (NAME, HEADER.replace("infer_step_time", "step") + ROWS, "has no columns infer_step_time"),
    (NAME, HEADER, "has no row"),
    (NAME, HEADER + ROWS.replace("256", "x"), "row 1 below the header has 'x' as infer_batch_size"),
    (NAME, HEADER + ROWS.replace("250.0", "100.0"), "resnet18 has a step time that is not its batch size over its throughput"),
    (NAME, HEADER + ROWS.replace("resnet18", ""), "rows without a model")])
def test_what_is_no_such_table_is_refused_in_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with refused(message):
        timm.read(tmp_path / name)


def test_networks_that_failed_there_are_left_out(tmp_path):
    (tmp_path / NAME).write_text(HEADER + ROWS.replace("1024.0,250.0", "0.0,0.0"))
    assert timm.read(tmp_path / NAME)["network"].tolist() == ["vit_tiny"]
