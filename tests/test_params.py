"""Parameters: notebooks and classes agree, wrong values are told in one line with the choices."""

import papermill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import paths
from lib.config import base, definitions, notebooks
from lib.config import definitions as config_definitions
from lib.errors import InputError
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
    ({"threads": 10**6}, ["threads", "less than or equal to 1024"]),
    ({"seed": 2**64}, ["seed", "less than 4294967296"]),
    ({"num_workers": 10**6}, ["num_workers", "less than or equal to 256"]),
    ({"sauce": 1}, ["unknown name 'sauce'", "known", "workload"]),
])
def test_wrong_values_are_named(values, words):
    with pytest.raises(InputError) as error:
        base.build(notebooks.ProfileParams, values, "02_profile")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


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


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "-x", ".hidden", "x" * 101, "a b"])
def test_a_sweeps_name_is_no_path(name):
    with pytest.raises(InputError, match="03_sweep: name = "):
        notebooks.check("03_sweep", {"name": name})
    assert notebooks.check("03_sweep", {"op": "linear,linear,conv2d"}).ops == ["linear", "conv2d"]


@pytest.mark.parametrize("text", ["[]", "3", "", "text", "[1, 2]", "{1: 2}", "rounds: ["])
@pytest.mark.parametrize("load", [definitions.load_campaign, definitions.load_matrix])
def test_a_plan_that_is_no_mapping_is_one_line(tmp_path, load, text):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(InputError, match=r"plan.yaml(:| line \d+ is not readable)") as error:
        load(tmp_path / "plan.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"rounds": 0}, {"rounds": 10**9}, {"case_s": 0}, {"case_s": 1e300},
                                    {"case_s": float("nan")}])
def test_a_campaign_without_end_is_refused(change):
    sets = [{"networks": ["W1"], "modes": ["infer"], "batch_sizes": [1]}]
    with pytest.raises(InputError, match=next(iter(change))):
        base.build(definitions.Campaign, {"rounds": 1, "case_s": 1.0, "sets": sets, **change}, "here")
