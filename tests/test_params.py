"""Parameters: notebooks and classes agree, wrong values are told in one line with the choices."""

import re
import shutil

import papermill
import pytest
from papermill.translators import PythonTranslator

from lib import paths
from lib.config import base, definitions, notebooks
from tests import refused
from tests.test_doors import LOADERS


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_the_defaults_of_a_parameters_cell_are_within_its_limits(name):
    inspected = papermill.inspect_notebook(str(paths.NOTEBOOKS / f"{name}.ipynb"))
    model = notebooks.notebook_model(name)
    assert list(inspected) == list(model.model_fields) and {"source", "reference"} <= inspected.keys()
    assert notebooks.check(name, model().model_dump()) == model()
    assert all(item["help"] for item in inspected.values()), "every parameter has a help text"


@pytest.mark.parametrize("name, values, words", [
    ("01_machine", {"device": "../x"}, "device = '../x' "),
    ("02_profile", {"precision": "fp8"}, "precision = 'fp8' should be 'fp32', 'bf16', 'fp16' or 'amp'"),
    ("02_profile", {"iters": -1}, "iters = -1 must be from 0"),
    ("02_profile", {"lr": float("nan")}, "lr = nan must be a finite number"),
    ("02_profile", {"iters": True}, "iters = True is no number"),
    ("02_profile", {"seed": 2**32}, "must be from 0 to 4294967295"),
    ("02_profile", {"label": 12e300}, "label = 1.2e+301 is text, but arrived as a number; pass it with papermill's -r"),
    ("02_profile", {"label": "a\nb"}, "label = 'a\\nb' must be one line"),
    ("03_sweep", {"shard": "8/8"}, "shard = '8/8' must be i/n with i below n"),
    ("03_sweep", {"name": "../x"}, "03_sweep: name = '../x"), ("99_nothing", {}, "01_machine, 02_profile")])
def test_a_wrong_value_is_named(name, values, words):
    with refused(re.escape(words)):
        notebooks.check(name, values)


def test_a_text_holds_spaces_and_letters_of_any_script():
    path = "/data/Se\u00f1or\u00a01\u202f000/\u0915\u094d\u200d\u0937"
    assert notebooks.check("02_profile", {"folder": path}).folder == path


@pytest.fixture
def edited(home, monkeypatch):
    """Return how a parameters cell is replaced in a copy of the notebooks; models are made anew."""
    shutil.copytree(paths.NOTEBOOKS, home / "notebooks")
    monkeypatch.setattr(paths, "NOTEBOOKS", home / "notebooks")

    def edit(name, old, new):
        path = home / f"notebooks/{name}.ipynb"
        path.write_text(path.read_text().replace(old, new))
        notebooks.notebook_model.cache_clear()

    yield edit
    notebooks.notebook_model.cache_clear()


@pytest.mark.parametrize("old, new, words", [
    ("iters: int = 30", "iters: int = \'x\'", "02_profile.ipynb: iters = 'x' should be a valid integer"),
    ("iters: int = 30", "iters = 30", "a parameter is declared as 'name: type = literal  # meaning'"),
    ("iters: int = 30", "iterations: int = -1", "iterations = -1 must be from 0"),
    ('"cells"', '"cels"', "02_profile.ipynb is no notebook: KeyError: 'cells'")])
def test_an_edited_notebook_is_refused_in_one_line_and_the_others_stay(edited, old, new, words):
    edited("02_profile", old, new)
    with refused(re.escape(words)):
        notebooks.check("02_profile", {})
    assert notebooks.SweepParams().rounds == 5


def test_text_from_the_command_line_is_coerced():
    p = notebooks.check("02_profile", {"channels_last": "true", "iters": "7", "lr": "1e-3", "unrelated": object()})
    assert p.channels_last is True and p.iters == 7 and p.lr == 1e-3
    assert notebooks.check("03_sweep", {"op": "linear,linear,conv2d"}).ops == ["linear", "conv2d"]


def test_an_unknown_name_that_papermill_injects_is_refused_and_helpers_of_other_cells_are_not():
    injected = PythonTranslator.codify({"iters": 7, "no_such_param": [1, "a = 2"]})
    cells = ["", "iters: int = 30", injected, "helper = 1"]
    namespace = {"iters": 7, "no_such_param": [1, "a = 2"], "helper": 1, "a": 2}
    with refused("02_profile: unknown name 'no_such_param' .known: workload, model, folder"):
        notebooks.check("02_profile", namespace | {"In": cells})
    corrected = [*cells, PythonTranslator.codify({"iters": 7}), "# Parameters of mine\nno_such_param = 3"]
    assert notebooks.check("02_profile", namespace | {"In": corrected}).iters == 7


def test_every_yaml_of_the_project_loads():
    loaded = {path.stem: LOADERS[path.stem](path) for path in paths.PARAMS.glob("*.yaml")}
    assert set(loaded) == set(LOADERS) and all(loaded.values())
    assert list(loaded["workloads"]) == [f"W{n}" for n in range(1, 8)]
    assert [section.notebook for section in loaded["report"].sections] == list(notebooks.NOTEBOOKS)


@pytest.mark.parametrize("text", ["[1, 2]", "text", "", "{1: 2}", "&a [*a]", "{unknown: 1}", "a: [", "a: 1\na: 2\n",
                                  "!!python/object:os.system {}", "\0"])
def test_a_yaml_that_is_no_mapping_of_what_it_should_be_is_one_line(text, tmp_path):
    (tmp_path / "a.yaml").write_text(text)
    for load in (definitions.load_workloads, definitions.load_campaign):
        with refused("a.yaml"):
            load(tmp_path / "a.yaml")


SCENARIOS = ("kinds: {a: {model: W1, mode: train}}\n"
             "scenarios: {s: {note: n, shortest_s: 1, longest_s: 2, devices: {cpu: {count: 1}}}}")
WRONG = """
workloads | workloads: {7: {dataset: x, size: 28, model: m, batch_size: 1}} | the name 7 is no text; put it in quotes
workloads | workloads: {W1: {dataset: x, size: 28, model: m, batch_size: 1, id: W9}} | W1: its id is its name
workloads | workloads: {W1: {dataset: x}} | W1: size is missing; model is missing
workloads | workloads: {W1: {dataset: x, size: 28, model: m, batch_size: 0}} | batch_size = 0 should be greater than or
workloads | workloads: {W1: {}, W1: {}} | line 1 is not readable YAML: found duplicate key
devices | {devices: {a: {}}, more: 1} | expected a mapping 'devices:' of name to definition and nothing else
matrix | {grids: {tpu: {}}} | grids.tpu
networks | {rounds: 1, case_s: 0, sets: [{networks: [W1], modes: [infer], batch_sizes: [1]}]} | case_s = 0
sweeps | spaces: {copy: {axes: {outer: {log: [0, 4]}, inner: 1}}} | is no range from 0 to 4
sweeps | spaces: {copy: {axes: {outer: inner, inner: outer}}} | copy: outer, inner refer to one another
sweeps | spaces: {copy: {axes: {outer: two, inner: 1}}} | outer = 'two' is no number, and no other axis
sweeps | spaces: {copy: {axes: {outer: 2}}} | missing [inner]
sweeps | spaces: {copy: {axes: {outer: 2, inner: 1, colour: 1}}} | copy has no parameters colour
sweeps | spaces: {copy: {passes: [sideways], axes: {outer: 2, inner: 1}}} | copy.passes.0 = 'sideways'
sweeps | {spaces: {}, grids: {g: {op: conv2d, axes: {batch: {log: [1, 4]}}}}} | a grid takes exact lists
sweeps | {spaces: {}, grids: {g: {op: fft, axes: {}}}} | no operator family 'fft'
"""


@pytest.mark.parametrize("name, text, words", [
    *(line.split(" | ") for line in WRONG.strip().splitlines()),
    *(("scenarios", SCENARIOS.replace(right, wrong), words) for right, wrong, words in (
        ("count: 1", 'count: 1, idle_w: "inf"', "idle_w"), ("shortest_s: 1", "shortest_s: 3", "shortest_s"),
        ("mode: train", "mode: fly", "mode"), ("note: n", "note: n, kinds: [b]", "no kinds b")))])
@pytest.mark.slow
def test_a_wrong_entry_of_a_yaml_says_what_is_wrong(name, text, words, tmp_path):
    file = tmp_path / f"{name}.yaml"
    file.write_text(text)
    with refused(f"{re.escape(str(file))}.*{re.escape(words)}"):
        LOADERS[name](file)


def test_yaml_is_version_1_2(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: no\nb: 1e-3\nc: 12:30\nd: 010\n")
    assert base.load_yaml(file) == {"a": "no", "b": 1e-3, "c": "12:30", "d": 10}
