"""Parameters: notebooks and classes agree, wrong values are told in one line with the choices."""

import math
from pathlib import Path

import papermill
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.config import base, definitions, notebooks
from lib.config import definitions as config_definitions
from lib.errors import InputError
from lib.studies.scheduler_eval import host
from lib.work.graph.spaces import load_sweeps


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_parameters_cell_is_the_class(name):
    inspected = papermill.inspect_notebook(str(paths.NOTEBOOKS / f"{name}.ipynb"))
    model = notebooks.NOTEBOOKS[name]
    assert set(inspected) == set(model.model_fields)
    literals = {key: eval(item["default"], {}) for key, item in inspected.items()}
    assert notebooks.check(name, literals) == model()
    assert all(item["help"] for item in inspected.values()), "every parameter has a help text"


@pytest.mark.parametrize(("values", "words"), [
    ({"precision": "fp8"}, ["precision", "fp8", "fp32", "bf16", "fp16"]),
    ({"iters": -1}, ["iters", "-1", "greater than or equal to 0"]),
    ({"lr": float("nan")}, ["lr", "finite"]),
    ({"iters": float("inf")}, ["iters", "finite"]),
    ({"lr": 0}, ["lr", "greater than 0"]),
    ({"label": 12e300}, ["label", "-r"]),
    ({"channels_last": "perhaps"}, ["channels_last", "perhaps"]),
    ({"sauce": 1}, ["unknown name 'sauce'", "known", "workload"]),
])
def test_wrong_values_are_named(values, words):
    with pytest.raises(InputError) as error:
        base.build(notebooks.ProfileParams, values, "02_profile")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


ODD = st.sampled_from([
    None, True, False, math.nan, math.inf, -math.inf, -1, 0, 1, 0.5, 1e30, -1e308, 10**30, 10**5000, "", " ", "nan", "7",
    "true", [], ["W1"], {}, {"a": 1}, (), b"x", object(), "../x", "/etc/passwd", "..", ".", "-x", "a/b", "a'b\"c", "x" * 2000,
    "a\nb", "a\0b", "\ud800", "\u2028", "\N{GRINNING FACE}", "\u0663x28x28", "cpu,cpu", "cuda,cuda:0", "all", "W1,,W2",
    ",", "1/1", "0/0", "9" * 400 + "/1", "<img src=x>", "%s{0}", "3x28x28"]) | st.text(max_size=8) | st.integers() | st.floats()


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_values_give_parameters_or_one_line(name, data):
    model = notebooks.NOTEBOOKS[name]
    values = data.draw(st.dictionaries(st.sampled_from(sorted(model.model_fields)), ODD, max_size=3))
    try:
        p = notebooks.check(name, values)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 2000
        assert any(f"{field} = " in str(error) for field in values)
        return
    assert notebooks.check(name, p.model_dump()) == p
    for field, value in p:
        assert not isinstance(value, str) or len(value.splitlines()) <= 1
        assert field not in ("reference", "name") or value in ("", Path(value).name)
    for attribute, kind in vars(model).items():
        assert not isinstance(kind, property) or isinstance(getattr(p, attribute), list | tuple)


@pytest.mark.parametrize(("name", "values", "words"), [
    ("01_machine", {"device": "../x"}, "device = '../x' "), ("01_machine", {"threads": 10**9}, "threads = 1000000000 "),
    ("02_profile", {"iters": True}, "iters = True is a number"), ("02_profile", {"seed": 2**32}, "seed = 4294967296 "),
    ("02_profile", {"reference": ".."}, "reference = '..' "), ("02_profile", {"batch_size": 10**7}, "batch_size = 10000000 "),
    ("02_profile", {"label": "a\nb"}, "label = 'a\\nb' must be one line"),
    ("02_profile", {"iters": 10**5000}, "iters = an endless int"),
    ("03_sweep", {"name": ".."}, "name = '..' "), ("03_sweep", {"name": "-rf"}, "name = '-rf' "),
    ("03_sweep", {"device": "cpu,cpu"}, "device = 'cpu,cpu' names a device twice"),
    ("03_sweep", {"device": "cuda,cuda:0"}, "device = 'cuda,cuda:0' names a device twice"),
    ("03_sweep", {"shard": "8/8"}, "shard = '8/8' must be i/n with i below n"), ("03_sweep", {"op": ""}, "op = '' "),
    ("04_complexity", {"input_shape": "nope"}, "input_shape = 'nope' "),
    ("04_complexity", {"models": " ,"}, "models = ' ,' is empty"),
    ("05_roofline", {"vendor": "../x"}, "vendor = '../x' "), ("07_scheduler_eval", {"jobs": "a\0b"}, "jobs = 'a\\x00b' "),
])
def test_a_value_beyond_its_bounds_is_refused(name, values, words):
    with pytest.raises(InputError) as error:
        notebooks.check(name, values)
    assert words in str(error.value)


def test_the_jobs_of_a_notebook_are_a_file(home):
    with pytest.raises(InputError, match="nowhere.csv is missing"):
        host.real_run(notebooks.check("07_scheduler_eval", {"jobs": "nowhere.csv"}))


def test_text_from_the_command_line_is_coerced():
    p = notebooks.check("02_profile", {"channels_last": "true", "iters": "7", "lr": "1e-3", "unrelated": object()})
    assert (p.channels_last, p.iters, p.lr) == (True, 7, 1e-3)


@given(st.integers(0, 10**6), st.booleans(), st.floats(1e-9, 10))
def test_a_checked_set_checks_again(iters, flag, lr):
    p = notebooks.check("02_profile", {"iters": iters, "augment": flag, "lr": lr})
    assert notebooks.check("02_profile", p.model_dump()) == p


def test_every_yaml_of_the_project_loads():
    assert list(config_definitions.load_workloads()) == [f"W{n}" for n in range(1, 8)]
    assert [section.notebook for section in config_definitions.load_report_plan().sections] == list(notebooks.NOTEBOOKS)
    readers = {"workloads.yaml": config_definitions.load_workloads, "report.yaml": config_definitions.load_report_plan}
    readers |= {"devices.yaml": definitions.load_devices, "matrix.yaml": definitions.load_matrix,
                "networks.yaml": definitions.load_campaign,
                "scenarios.yaml": definitions.load_scenarios,
                "nsight_metrics.yaml": definitions.load_metrics, "sweeps.yaml": load_sweeps}
    assert all(reader() for reader in readers.values())
    assert {path.name for path in paths.PARAMS.glob("*.yaml")} == set(readers), "each YAML file has a reader"


def test_yaml_is_version_1_2(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: no\nb: 1e-3\nc: 12:30\nd: 010\n")
    assert base.load_yaml(file) == {"a": "no", "b": 1e-3, "c": "12:30", "d": 10}


@pytest.mark.parametrize(("text", "words"), [
    ("workloads: {W1: {dataset: x}}", ["W1", "size is missing", "model is missing"]),
    ("workloads: {W1: {dataset: x, size: 28, model: m, batch_size: 0}}", ["W1", "batch_size", "greater than or equal to 1"]),
    ("workloads: {W1: 7}", ["W1", "must be a mapping"]),
    ("workloads: [1, 2]", ["expected a mapping"]),
    ("workloads: {W1: {}, W1: {}}", ["duplicate key"]),
    ("workloads: {", ["line", "not readable YAML"]),
    ("", ["expected a mapping"]),
])
def test_wrong_workload_files(tmp_path, text, words):
    file = tmp_path / "workloads.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        config_definitions.load_workloads(file)
    assert str(file) in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_missing_file_and_an_unknown_workload_are_named(tmp_path):
    with pytest.raises(InputError, match="missing"):
        config_definitions.load_workloads(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="W1, W2, W3, W4, W5, W6, W7"):
        config_definitions.workload("W9")
    with pytest.raises(InputError, match="01_machine, 02_profile"):
        notebooks.notebook_model("99_nothing")
