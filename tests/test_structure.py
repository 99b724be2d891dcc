"""Structure: imports go one way, the map is complete. Each test lists all offenders; what is undocumented, ruff lists."""

import ast
import contextlib
import graphlib
import importlib
import re

import nbformat
import pytest

from lib import paths

ROOMS = ("config", "work", "measure", "predict", "schedule", "tensorrt", "finetune", "dashboard", "cli")  # from the ground up
TOP = {"lib.notebook": {"ground", "config"}, "lib.report": {"ground", "config"}}  # beside the rooms, for notebooks and cli
FILES = {".".join(path.relative_to(paths.ROOT).with_suffix("").parts).removesuffix(".__init__"): path
         for path in sorted((paths.ROOT / "lib").rglob("*.py"))}
NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def modules():
    """Return the parsed modules of lib by name."""
    return {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def imported(tree, packages=("lib",)):
    """Yield (module, name) of what a module imports from these packages anywhere in its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages:
            yield from ((node.module, alias) for alias in node.names)


@pytest.fixture(scope="module")
def imports(modules):
    """Return the modules of lib that each module imports."""
    return {name: {f"{module}.{alias.name}" if f"{module}.{alias.name}" in FILES else module
                   for module, alias in imported(tree)} - {name} for name, tree in modules.items()}


def room(name):
    parts = name.split(".")
    return name if name in TOP else parts[1] if len(parts) > 1 and parts[1] in ROOMS else "ground"


def allowed(name):
    """Return the rooms that a module may import: its own and those below; nothing imports lib.notebook."""
    own = room(name)
    if own in TOP:
        return TOP[own]
    below = {"ground", *ROOMS[: ROOMS.index(own) + 1]} if own != "ground" else {"ground"}
    return below | {"lib.report"} if own == "cli" else below


@pytest.mark.slow
def test_arrows_go_one_way_between_rooms(imports):
    assert [(name, other) for name in imports if name != "lib.__main__" for other in imports[name]
            if room(other) not in allowed(name)] == []


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_no_circles_between_packages_and_files(imports, depth):
    def group(name):
        """Return the package at this depth that holds a module, or the module where it lies above."""
        parts = name.split(".")
        head = ".".join(parts[:depth])
        return head if FILES[head].name == "__init__.py" or len(parts) <= depth else name

    graph = {}
    for name in imports:
        graph.setdefault(group(name), set()).update(group(other) for other in imports[name] if group(other) != group(name))
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names a circle


def missing_names(tree):
    """Return what a text takes from lib or benchmarks that is not there."""
    used, missing = {}, []
    for module, alias in imported(tree, ("lib", "benchmarks")):
        with contextlib.suppress(ModuleNotFoundError):
            used[alias.asname or alias.name] = importlib.import_module(f"{module}.{alias.name}")
            continue
        if not hasattr(importlib.import_module(module), alias.name):
            missing.append(f"{module}.{alias.name}")
    return missing + [f"{node.value.id}.{node.attr}" for node in ast.walk(tree)
                      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in used
                      and not hasattr(used[node.value.id], node.attr)]


def test_what_tests_do_not_run_uses_what_there_is():
    """Benchmarks and what a notebook runs only where it measures: every name that they take from lib is there."""
    texts = {path.stem: path.read_text() for path in (paths.ROOT / "benchmarks").glob("*.py")}
    texts |= {path.stem: "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
              for path in NOTEBOOKS}
    assert {name: missing for name, text in texts.items() if (missing := missing_names(ast.parse(text)))} == {}


# Where one format or another is parsed. Files come in through the first group, whose readers check them; the second reads what
# this project's own processes hand one another, and cells of tables that were checked when they were read.
DOORS = {"lib.csv_files": "pd.read_csv pd.read_excel", "lib.config.base": "YAML",
         "lib.config.notebooks": "json.loads ast.literal_eval",
         "lib.store": "json.loads pd.read_parquet pq.read_schema",
         "lib.work.weights": "torch.load",
         "lib.predict.model_file": "json.loads"}
OWN = dict.fromkeys(("lib.schedule.run.processes",
                     "lib.measure.networks.end_to_end", "lib.measure.networks.visits_file",
                     "lib.measure.operators.device_sweep", "lib.measure.operators.aggregate", "lib.measure.machine",
                     "lib.predict.published.kernelbench"),
                    "json.loads") | {
    "lib.tensorrt.tune": "YAML yaml.load"}  # a round trip that keeps the comments
PARSERS = re.compile(r"(pd|pandas)\.read_\w+|(pq|pa|pyarrow)\.(ParquetFile|read_\w+|ipc.*)|(json|pickle|marshal|yaml|joblib|np|"
                     r"numpy|torch|tomllib)\.loads?|np\.(genfromtxt|loadtxt|fromfile)|YAML|ast\.literal_eval|eval|exec")


def parsers(tree):
    """Return the parsers of files that a module uses, as it writes them."""
    dotted = (ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in ast.walk(tree)
              if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
              or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)))
    return {name for name in dotted if PARSERS.fullmatch(name)}


def test_files_come_in_through_the_doors(modules):
    assert [(name, used) for name, tree in modules.items()
            if not (used := parsers(tree)) <= {*DOORS.get(name, "").split(), *OWN.get(name, "").split()}] == []


def test_the_map_names_every_package_and_nothing_else(modules):
    packages = {name.partition(".")[2].replace(".", "/") for name, path in FILES.items() if path.name == "__init__.py"}
    packages -= {"", "tables"}  # the library, and a package of the ground
    room, named = "", set()
    for line in ast.get_docstring(modules["lib"]).splitlines():
        if line.startswith("    "):
            room = re.match(r"    (\w+)|", line)[1] or room
            folders = re.findall(r"([a-z_]+(?:/[a-z_]+)*)/(?= |$)", line)
            named |= {room, *(f"{room}/{folder}" for folder in folders)}
    assert named - {"ground", "notebook", "report"} == packages
    assert set(ROOMS) == {name for name in packages if "/" not in name}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_a_story_of_short_cells_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert notebook.cells[0].source.startswith("# ")
    assert f'nb = notebook.setup("{path.stem}", globals())' in code[1].source
    assert "## Try it" in prose and sum("try" in cell.metadata.get("tags", ()) for cell in code) == 3
    for cell in code:
        lines = cell.source.splitlines()
        is_parameters = "parameters" in cell.metadata.get("tags", ())
        assert is_parameters or len(lines) <= 20, cell.source
        assert is_parameters or max(map(len, lines)) <= 110, max(lines, key=len)
        assert not re.search(r"sys\.path|urlretrieve|/home/|/tmp/|switch_backend", cell.source)


def test_every_requirement_is_pinned_and_says_what_it_is_for():
    for line in (paths.ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith(("#", "-e .")) or re.match(r"\S+==\S+ +# \S", line), line
