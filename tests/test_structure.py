"""The shape of the house: arrows one way, thin files, one docstring a thing, a README that does not rot."""

import ast
import re
import subprocess

import nbformat
import pytest

from lib import params, paths

FLOORS = ["ground", "work", "measure", "predict", "schedule"]
SOURCES = sorted((paths.ROOT / "lib").rglob("*.py"))
COMMAND_LINE = ("__main__.py", "verbs.py")  # stands above all rooms
NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


def room(path):
    parts = path.relative_to(paths.ROOT / "lib").parts
    return parts[0] if len(parts) > 1 else "ground"


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
            parts = node.module.split(".")
            names = [alias.name for alias in node.names] if len(parts) == 1 else [parts[1]]
            for name in names:
                yield name if (paths.ROOT / "lib" / name).is_dir() else "ground"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name not in COMMAND_LINE], ids=lambda p: f"{room(p)}/{p.name}")
def test_arrows_go_one_way(path):
    allowed = {"ground", "book"} if room(path) == "book" else set(FLOORS[: FLOORS.index(room(path)) + 1])
    assert set(imports(path)) <= allowed


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{room(p)}/{p.name}")
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
    assert any(cell.source.startswith("## What we learned") for cell in prose)
    for cell in bare:
        assert not re.search(r"^\s*(def|class|for|while)\b|sys\.path|savefig|urlretrieve|/home/|/tmp/", cell.source, re.M)


def test_each_notebook_is_in_the_report_and_in_the_readme():
    names = [path.stem for path in NOTEBOOKS]
    assert names == list(params.NOTEBOOKS) == [section.notebook for section in params.load_report_plan().sections]
    readme = (paths.ROOT / "README.md").read_text()
    for name in names:
        assert f"notebooks/{name}.ipynb" in readme


def test_the_readme_names_what_exists():
    readme = (paths.ROOT / "README.md").read_text()
    makefile = (paths.ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (paths.ROOT / link).exists(), link
    verbs = set(re.findall(r"python -m lib ([a-z-]+)", readme))
    help_text = subprocess.run([".venv/bin/python", "-m", "lib", "--help"], capture_output=True, text=True, cwd=paths.ROOT,
                               check=False).stdout if (paths.ROOT / ".venv").exists() else ""
    assert not help_text or all(re.search(rf"^    {verb}\b", help_text, re.M) for verb in verbs)


def test_every_requirement_is_pinned_and_says_what_it_is_for():
    for line in (paths.ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith(("#", "-e .")) or re.match(r"\S+==\S+ +# \S", line), line
