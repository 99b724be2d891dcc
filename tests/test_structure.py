"""The shape of the house: arrows one way, thin files, one docstring a thing."""

import ast
import contextlib
import graphlib
import importlib
import re

import nbformat
import pytest

from lib import paths

# From the ground up; report stands on config.
ROOMS = ("config", "work", "measure", "predict", "schedule", "tensorrt", "finetune", "dashboard", "studies", "cli")
MODULES = {".".join(path.relative_to(paths.ROOT).with_suffix("").parts).removesuffix(".__init__"): path
           for path in sorted((paths.ROOT / "lib").rglob("*.py"))}
SOURCES = list(MODULES.values())
NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


def imports(name):
    """Return the modules of lib that a module imports anywhere in its text."""
    imported = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
            imported |= {f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module
                         for alias in node.names}
    return imported - {name}


def room(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in (*ROOMS, "report") else "ground"


def allowed(name):
    """Return the rooms that a module may import: its own and those below."""
    own = room(name)
    if own == "report":
        return {"ground", "config", "report"}
    below = {"ground", *ROOMS[: ROOMS.index(own) + 1]} if own != "ground" else {"ground"}
    return below | {"report"} if own in ("dashboard", "studies", "cli") else below


@pytest.mark.parametrize("name", [name for name in MODULES if name != "lib.__main__"])
def test_arrows_go_one_way_between_rooms(name):
    assert {room(other) for other in imports(name)} <= allowed(name)


@pytest.mark.parametrize("name", MODULES)
def test_a_study_is_imported_by_its_notebook_alone(name):
    own = ".".join(name.split(".")[:3])
    assert not {other for other in imports(name) if other.startswith("lib.studies.") and not other.startswith(own)}


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_no_circles_between_packages_and_files(depth):
    def group(name):
        """Return the package at this depth that holds a module, or the module where it lies above."""
        parts = name.split(".")
        head = ".".join(parts[:depth])
        return head if MODULES[head].name == "__init__.py" or len(parts) <= depth else name

    graph = {}
    for name in MODULES:
        graph.setdefault(group(name), set()).update(group(other) for other in imports(name) if group(other) != group(name))
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle


@pytest.mark.parametrize("path", [*sorted((paths.ROOT / "benchmarks").glob("*.py")), *NOTEBOOKS], ids=lambda path: path.stem)
def test_what_tests_do_not_run_uses_what_there_is(path):
    """Benchmarks and what a notebook runs only where it measures: every name that they take from lib is there."""
    text = path.read_text() if path.suffix == ".py" else "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
    tree, modules = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("lib", "benchmarks"):
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):
                    modules[alias.asname or alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
                assert (alias.asname or alias.name) in modules or hasattr(importlib.import_module(node.module), alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


PRIVATE_WORDS = set("""asked told said mine found yardstick knee forge shelf shelved belief believed ledger confront judging
    giver fluid hire hired seat desk menu hand""".split())


@pytest.mark.parametrize("name", MODULES)
def test_names_are_words_of_the_field(name):
    """No identifier is made of a word that a reader would have to look up here (docs/glossary.md has those of the field)."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names |= {node.name, *(argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg))}
    assert not {one for one in names if PRIVATE_WORDS & set(re.findall("[A-Z]?[a-z]+", one.replace("_", " ").lower()))}


# Where one format or another is parsed. Files come in through the first group, whose readers check them; the second reads what
# this project's own processes hand one another, and cells of tables that were checked when they were read.
DOORS = {"lib.csv_files": "pd.read_csv", "lib.store": "json.loads pq.ParquetFile", "lib.config.base": "YAML",
         "lib.work.medmnist_files": "np.load", "lib.work.weights": "torch.load",
         "lib.predict.model_file": "json.loads"}
OWN = dict.fromkeys(("lib.execution", "lib.schedule.runtime.worker_process", "lib.schedule.runtime.journal",
                     "lib.measure.networks.heap_replay", "lib.measure.networks.end_to_end", "lib.measure.networks.visits_file",
                     "lib.measure.operators.raw_files", "lib.measure.operators.aggregate"), "json.loads") | {
    "lib.tensorrt.models.tuning": "YAML yaml.load"}  # a round trip that keeps the comments
PARSERS = re.compile(r"(pd|pandas)\.read_\w+|(pq|pa|pyarrow)\.(ParquetFile|read_\w+|ipc.*)|(json|pickle|marshal|yaml|joblib|np|"
                     r"numpy|torch|tomllib)\.loads?|np\.(genfromtxt|loadtxt|fromfile)|YAML|ast\.literal_eval|eval|exec")


@pytest.mark.parametrize("name", MODULES)
def test_files_come_in_through_the_doors(name):
    nodes = ast.walk(ast.parse(MODULES[name].read_text()))
    names = {ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in nodes
             if isinstance(node, ast.Call | ast.Attribute)}
    assert {one for one in names if PARSERS.fullmatch(one)} <= {*DOORS.get(name, "").split(), *OWN.get(name, "").split()}


def test_folders_are_small():
    for folder in {path.parent for path in SOURCES}:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 13, f"{folder.relative_to(paths.ROOT)} holds {len(files)} files: {files}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(paths.ROOT)))
def test_files_and_functions_are_short_and_documented(path):
    tree = ast.parse(path.read_text())
    assert path.read_text().count("\n") <= 400
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            nested = any(node in ast.walk(outer) for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef)
                         and outer is not node)
            assert nested or ast.get_docstring(node), f"{node.name} has no docstring"
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is long"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_stories_and_hold_no_logic_or_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    bare = [cell for cell in code if "parameters" not in cell.metadata.get("tags", [])]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert not any("papermill" in cell.metadata for cell in notebook.cells)
    assert len(code) <= 25
    sizes = sorted(len(cell.source.splitlines()) for cell in bare)
    assert sizes[len(sizes) // 2] <= 6
    assert sizes[-1] <= 20
    words = sum(len(cell.source.split()) for cell in prose)
    assert words >= 4 * sum(sizes)
    assert prose[0].source.startswith("# ")
    assert code[1].source == f'from lib.report.notebook import setup\n\nnb = setup("{path.stem}", globals())'
    assert any(cell.source.startswith("## What we learned") for cell in prose)
    for cell in bare:
        assert not re.search(r"^\s*(def|class|for|while)\b|sys\.path|savefig|urlretrieve|/home/|/tmp/", cell.source, re.M)


def test_every_requirement_is_pinned_and_says_what_it_is_for():
    for line in (paths.ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith(("#", "-e .")) or re.match(r"\S+==\S+ +# \S", line), line
