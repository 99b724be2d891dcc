"""Inputs that users get wrong are refused in one line, and what is right is read as it is."""

import json
import random
from functools import partial

import pandas as pd
import pytest

from lib import paths, store, tables
from lib.config import definitions
from lib.config.base import load, load_yaml
from lib.errors import InputError
from lib.finetune.config import TrainConfig, load_configs
from lib.tensorrt import training
from lib.work.graph import spaces
from tests import called, refused, row, with_value

pytestmark = pytest.mark.slow
CAMPAIGNS = ("networks", "networks_conditions", "networks_gpu", "networks_gpu_compiled",
             "networks_runtimes")
LOADERS = {
    "devices": definitions.load_devices, "scenarios": definitions.load_scenarios,
    "workloads": definitions.load_workloads, "nsight_metrics": definitions.load_metrics,
    "matrix": definitions.load_matrix, "report": definitions.load_report_plan,
    "sweeps": spaces.load_sweeps, "training": load_configs, "layer_power": training.load_settings,
    "gpu_finetune": partial(load, TrainConfig), "gpu_finetune_short": partial(load, TrainConfig),
    **dict.fromkeys(CAMPAIGNS, definitions.load_campaign)}


def places(tree, path=()):
    """Return the path of every node of a tree of mappings and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


@pytest.mark.parametrize("name", LOADERS)
def test_a_yaml_that_is_wrong_somewhere_is_refused(name, tmp_path):
    tree, path = load_yaml(paths.PARAMS / f"{name}.yaml"), tmp_path / f"{name}.yaml"
    path.write_text(json.dumps(tree))  # which is YAML 1.2
    assert LOADERS[name](path) == LOADERS[name](paths.PARAMS / path.name)
    for place in random.Random(0).sample(places(tree), 3):
        for value in ({"of_no_meaning": 1}, [{"a": 1}]):
            path.write_text(json.dumps(with_value(tree, place, value)))
            with refused(f"{name}.yaml"):
                LOADERS[name](path)


def typed(table):
    return row(table).astype({name: one.dtype for name, one in tables.TABLES[table].items()})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_table_comes_back_as_it_was_written(suffix, tmp_path):
    for table in tables.TABLES:
        path = store.write(typed(table), tmp_path / f"{table}{suffix}", table)
        pd.testing.assert_frame_equal(store.read(path, table), typed(table))


@pytest.mark.parametrize("table", ["cells", "history", "schedule"])
def test_a_wrong_cell_is_refused(table, tmp_path):
    path, frame = tmp_path / "a.csv", typed(table)
    for name, column in tables.TABLES[table].items():
        wrong = ["x", "1_0"] if column.kind != "str" else ["neither"] if column.of else []
        wrong += [] if column.least is None else [str(column.least - 1)]
        for cell in wrong + [""] * (not column.empty):
            path.write_bytes(store.encoded(frame.astype(object).assign(**{name: cell}), ".csv"))
            with refused(f"{name} in row 1 is"):
                store.read(path, table)


SCHEDULE = "schedule --times times.csv --devices devices.csv"
INPUTS = {"times.csv": "job_id,cpu\na,1\nb,2\n", "devices.csv": "device,type\nd,cpu\n",
          "jobs.csv": "job_id,workload_id,steps\na,W1,1\n", "zip.csv": "PK\x03\x04",
          "braces.csv": "{", "empty.csv": "", "escape.csv": "job_id,notebook\na,../../etc/passwd\n"}
LINES = [
    f"{SCHEDULE} --objective x", "schedule --times no.csv --devices ",
    "schedule --times devices.csv --devices times.csv", "schedule --times zip.csv --devices {",
    f"{SCHEDULE} --output times.csv", f"{SCHEDULE} --output no/folder.csv", "run-jobs escape.csv",
    "run-jobs braces.csv", "run-jobs jobs.csv --slots=-1", "run-jobs jobs.csv --slots=nan",
    "measure networks --dry-run --rounds=0x1", "measure networks --dry-run --plan braces.csv",
    "measure matrix --dry-run --budget-s=inf",
    "measure matrix --dry-run --cells x", "calibrate --budget-s=-0.5", "import neusight no", "x",
    "data unpack zip.csv", "data push . --remote-dir=", "advise resnet5000", "advise os:system",
    "advise ../x:Y", "advise resnet18 --batch-size=1,5", "advise resnet18 --dtype fp7"]


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_command_line_is_one_line_of_error(line, home, monkeypatch):
    monkeypatch.chdir(home)
    for name, content in INPUTS.items():
        (home / name).write_text(content)
    status, _, error = called(*line.split(" "))
    assert status == 2 and error.startswith("error: ") and error.count("\n") == 1, error
    assert {name: (home / name).read_text() for name in INPUTS} == INPUTS, "nothing is overwritten"


def test_an_error_is_one_printable_line_of_readable_length():
    assert str(InputError("a\nb\r\u2028c\x1b[2J")) == "a b  c\\x1b[2J"
    error = str(InputError("file" + "x" * 100_000 + " here; there are: a, b"))
    assert error.endswith("here; there are: a, b") and len(error) < 2100
