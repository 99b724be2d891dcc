"""The door of the YAML that people edit (``params/``): every file's loader, each with a tree that is changed somewhere."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from lib import paths
from lib.config import definitions
from lib.config.base import load_yaml
from lib.finetune.config import load_configs
from lib.work.graph import spaces
from tests.doors import ANY, SAME, WRONG, Door, pass_through

LOADERS: dict[str, Callable[[Path], Any]] = {
    "devices": definitions.load_devices,
    "scenarios": definitions.load_scenarios,
    "workloads": definitions.load_workloads,
    "nsight_metrics": definitions.load_metrics,
    "matrix": definitions.load_matrix,
    "networks": definitions.load_campaign,
    "report": definitions.load_report_plan,
    "sweeps": spaces.load_sweeps,
    "training": load_configs,
}
ROOTS = [
    "",
    "[]",
    "- a\n- b\n",
    "text",
    "1",
    "null",
    "{",
    "a: b: c",
    "a: 1\na: 2\n",
    "\t- x",
    "!!python/object:os.system {}",
    "&a [*a]",
    "? {a: 1}\n: 2\n",
    "1: 2\n",
    "[" * 5000,
    "\x00",
    "\ud7ff",
    "%YAML 9.9\n---\na: 1\n",
]
VALUES = [None, True, -1, 0, 1, 1.5, 1e30, -1e308, "", "x", "../x", "\n", "🙂", [], [[]], {}, {"a": 1}, [None], "1e999", 10**40]


def places(tree: Any, path: tuple = ()) -> list[tuple]:
    """Return the path of every node of a tree of mappings and lists, the root's too."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(deeper for key, value in below for deeper in places(value, (*path, key)))]


def at(tree: Any, path: tuple) -> Any:
    """Return the node at a path."""
    for key in path:
        tree = tree[key]
    return tree


def changed(tree: Any, path: tuple, value: Any) -> Any:
    """Return a copy of a tree with another node at a path."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    at(tree, path[:-1])[path[-1]] = value
    return tree


def _other_shape(node: Any) -> Any:
    """Return what no field takes that takes this node: a list for a mapping, a mapping for the rest."""
    return ["a list"] if isinstance(node, dict) else {"a": {"mapping": 1}}


def _attempt(data: st.DataObject, folder: Path) -> str:
    name = data.draw(st.sampled_from(sorted(LOADERS)), label="file")
    path, load = folder / f"{name}.yaml", LOADERS[name]
    how = data.draw(
        st.sampled_from(
            ["as it is", "another text", "another shape", "unknown name", "not finite", "another value", "left out"]
        ),
        label="how",
    )
    if how == "another text":
        path.write_text(data.draw(st.sampled_from(ROOTS)), encoding="utf-8")
        return pass_through(lambda: load(path), WRONG, f"{name} is {how}")
    tree = load_yaml(paths.PARAMS / f"{name}.yaml")
    nodes = places(tree)
    if how == "unknown name":
        nodes = [place for place in nodes if isinstance(at(tree, place), dict)]
    elif how == "not finite":
        nodes = [place for place in nodes if isinstance(at(tree, place), float)] or [()]
    place = data.draw(st.sampled_from(nodes), label="place")
    kind, tree = _damaged(tree, place, how, data)
    path.write_text(json.dumps(tree), encoding="utf-8")  # YAML 1.2 takes JSON
    return pass_through(lambda: load(path), kind, f"{name}: {how} at {place}", load(paths.PARAMS / path.name))


def _damaged(tree: Any, place: tuple, how: str, data: st.DataObject) -> tuple[str, Any]:
    node = at(tree, place)
    if how == "as it is":
        return SAME, tree
    if how == "another shape":
        return WRONG, changed(tree, place, _other_shape(node))
    if how == "unknown name":
        return WRONG, changed(tree, (*place, "of_no_meaning"), "of no meaning")
    if how == "not finite":
        return WRONG, changed(tree, place, data.draw(st.sampled_from([float("nan"), float("inf")])))
    if how == "left out" and place:
        tree = copy.deepcopy(tree)
        above = at(tree, place[:-1])
        del above[place[-1]]
        return ANY, tree
    return ANY, changed(tree, place, data.draw(st.sampled_from(VALUES), label="value"))


DOOR = Door("definitions in YAML", _attempt)
