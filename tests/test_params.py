"""Parameters: notebooks and classes agree, wrong values are told in one line with the choices."""

import copy
import math
import random
from pathlib import Path

import papermill
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.config import base, definitions, notebooks
from lib.config import definitions as config_definitions
from lib.errors import InputError
from lib.finetune import config as finetune_config
from lib.studies.scheduler_eval import host
from lib.tensorrt.models import training
from lib.work.graph import spaces


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
    ("02_profile", {"iters": True}, "iters = True is no number"), ("02_profile", {"seed": 2**32}, "seed = 4294967296 "),
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


READERS = {"workloads.yaml": definitions.load_workloads, "report.yaml": definitions.load_report_plan,
           "devices.yaml": definitions.load_devices, "matrix.yaml": definitions.load_matrix,
           "networks.yaml": definitions.load_campaign, "scenarios.yaml": definitions.load_scenarios,
           "networks_conditions.yaml": lambda path=paths.PARAMS / "networks_conditions.yaml": definitions.load_campaign(path),
           "nsight_metrics.yaml": definitions.load_metrics, "sweeps.yaml": spaces.load_sweeps,
           "layer_power.yaml": training.load_settings, "training.yaml": finetune_config.load_configs}


def test_every_yaml_of_the_project_loads():
    assert list(config_definitions.load_workloads()) == [f"W{n}" for n in range(1, 8)]
    assert [section.notebook for section in config_definitions.load_report_plan().sections] == list(notebooks.NOTEBOOKS)
    assert all(reader() for reader in READERS.values())
    assert {path.name for path in paths.PARAMS.glob("*.yaml")} == set(READERS), "each YAML file has a reader"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["[1, 2]", "7", "text", "", "null", "{}", "{1: 2}", "2020-01-01", "? [a]\n: 1", "&a [*a]",
                                  "!!set {a, b}", "- a: 1", "{unknown: 1}", "a: [", "!!python/object:os.system {}"])
def test_a_yaml_that_is_no_mapping_of_what_it_should_be_is_one_line(name, text, tmp_path):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InputError) as error:
        READERS[name](file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


ODD_LEAVES = (None, True, -1, 0, 1e308, "", "x", "half", [], {}, [[]], [None], float("nan"), float("inf"), 2**70, {1: 2},
              {"x": 1},[1, "a"], [True], "two\nlines")


def _places(value, place=()):
    yield place
    for key in value if isinstance(value, dict) else range(min(3, len(value))) if isinstance(value, list) else ():
        yield from _places(value[key], (*place, key))


@pytest.fixture(scope="module")
def contents():
    """Give what each file holds: YAML takes long to read."""
    return {name: base.load_yaml(paths.PARAMS / name) for name in READERS}


@pytest.mark.parametrize("name", READERS)
def test_whatever_an_entry_of_a_yaml_becomes_it_is_taken_or_one_line(name, contents, monkeypatch):
    """Entries in turn become something odd, or get an odd name; what a sweep then takes can be drawn from."""
    draw, refused = random.Random(0), 0
    monkeypatch.setattr(definitions, "_devices", definitions._devices.__wrapped__)  # read anew each time
    for place in draw.choices(list(_places(contents[name]))[1:], k=60):
        odd, holder = draw.choice(ODD_LEAVES), copy.deepcopy(contents[name])
        content = holder
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = odd
        if isinstance(holder, dict) and draw.random() < 0.2 and not isinstance(odd, list | dict):
            holder[odd] = holder.pop(place[-1])
        monkeypatch.setattr(base, "load_yaml", lambda _, content=content: content)
        monkeypatch.setattr(definitions, "load_yaml", lambda _, content=content: content)
        try:
            taken = READERS[name](paths.PARAMS / name)
            if name == "sweeps.yaml" and place[0] == "spaces" and len(place) > 1:
                next(spaces.sample(place[1], taken.spaces[place[1]], taken.limits, 0))
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 30


@pytest.mark.parametrize(("reader", "text", "words"), [
    ("workloads.yaml", "workloads: {7: {dataset: x, size: 28, model: m, batch_size: 1}}", "the name 7 is no text; put it in q"),
    ("workloads.yaml", "workloads: {W1: {id: W9, dataset: x, size: 28, model: m, batch_size: 1}}", "W1: its id is its name"),
    ("workloads.yaml", "workloads: {W1: {dataset: x, size: 28, model: m, batch_size: true}}", "batch_size = True is no number"),
    ("devices.yaml", "devices: {a: {}}\nmore: 1", "expected a mapping 'devices:' of name to definition and nothing else"),
    ("scenarios.yaml", "kinds: {}\nscenarios: {}", "expected a mapping 'kinds:' of name to definition beside 'scenarios'"),
    ("networks.yaml", "{rounds: 1, case_s: .inf, sets: []}", "case_s = inf must be a finite number"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: [], inner: 1}}}", "copy.axes.outer"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: {log: [0, 4]}, inner: 1}}}", "is no range from 0 to 4"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: {linear: [9, 4]}, inner: 1}}}", "is no range from 9 to 4"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: inner, inner: outer}}}", "copy: outer, inner refer to one another"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: two, inner: 1}}}", "outer = 'two' is no number, and no other axis"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: 2, inner: 1, layout: 3}}}", "layout = 3 is no text"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: layout, inner: 1, layout: contiguous}}}", "outer = 'layout' is no number"),
    ("sweeps.yaml", "spaces: {copy: {axes: {outer: 2}}}", "missing [inner]"),
    ("sweeps.yaml", "spaces: {copy: {passes: [sideways], axes: {outer: 2, inner: 1}}}", "copy.passes.0 = 'sideways'"),
    ("sweeps.yaml", "spaces: {}\ngrids: {g: {op: fft, axes: {}}}", "no operator family 'fft'")])
def test_a_wrong_entry_of_a_yaml_says_what_is_wrong(reader, text, words, tmp_path):
    file = tmp_path / reader
    file.write_text(text)
    with pytest.raises(InputError) as error:
        READERS[reader](file)
    assert str(file) in str(error.value) and words in str(error.value)


def test_a_sweep_of_everything_needs_a_space(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "PARAMS", tmp_path)
    for text, words in (("spaces: {}", "spaces is empty"), ("[1]", "expected a mapping"), ("spaces: 3", "spaces: expected")):
        (tmp_path / "sweeps.yaml").write_text(text)
        with pytest.raises(InputError, match=words):
            _ = notebooks.SweepParams(op="all").ops


def test_an_error_is_one_line_whatever_it_quotes():
    assert str(InputError("a\nb\r\u2028c\x1b[2J")) == "a b  c\\x1b[2J"
    deep = []
    for _ in range(60):
        deep = [deep, deep]
    with pytest.raises(InputError) as error:
        base.build(notebooks.ProfileParams, {"label": deep, "iters": "9" * 10_000}, "02_profile")
    assert len(str(error.value)) < 500


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
