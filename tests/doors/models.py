"""The door of model files (``CostModel.load``): the smallest that ships, its JSON changed somewhere, or its bytes damaged."""

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from lib.predict import registry
from lib.predict.operators.cost_model import CostModel
from tests.doors import ANY, SAME, WRONG, Door, pass_through
from tests.doors.definitions import VALUES, at, changed

OPERATOR = ("matmul", {"m": 64, "n": 64, "k": 64}, 2 * 64.0**3, 3 * 4 * 64.0**2)


@cache
def _original() -> tuple[str, dict[str, Any], tuple]:
    """Return the name, content and one prediction of a model of few parts."""
    path = min(registry.SHIPPED.glob("cpu-*.json.gz"), key=lambda path: path.stat().st_size)
    content = json.loads(gzip.decompress(path.read_bytes()))
    keep = [name for name in content["parts"] if name.startswith("gemm")][:2]
    content["parts"] = {name: content["parts"][name] for name in keep}
    return path.name, content, CostModel.load(path).predict_one(*OPERATOR)


def shallow(tree: Any, path: tuple = ()) -> list[tuple]:
    """Return the path of every node, of long lists the first two elements alone."""
    below = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:2] if isinstance(tree, list) else ()
    return [path, *(deeper for key, value in below for deeper in shallow(value, (*path, key)))]


def _damaged(tree: dict, how: str, data: st.DataObject) -> tuple[str, Any]:
    places = shallow(tree)
    if how == "left out":
        place = data.draw(
            st.sampled_from([one for one in places if one and one[0] in ("parts", "device", "schema") and len(one) in (1, 3)]),
            label="place",
        )
        tree = copy.deepcopy(tree)
        del at(tree, place[:-1])[place[-1]]
        return WRONG, tree
    place = data.draw(st.sampled_from(places), label="place")
    node = at(tree, place)
    if how == "another shape" and not (place and place[0] == "facts" and len(place) > 1) and "scores" not in place:
        return WRONG, changed(tree, place, ["a list"] if isinstance(node, dict) else {"a": {"mapping": 1}})
    return ANY, changed(tree, place, data.draw(st.sampled_from(VALUES), label="value"))


def _read(path: Path) -> tuple:
    model = CostModel.load(path)
    return model.predict_one(*OPERATOR)


def _attempt(data: st.DataObject, folder: Path) -> str:
    name, content, predicted = _original()
    how = data.draw(
        st.sampled_from(["as it is", "left out", "another shape", "another value", "bytes", "no JSON"]), label="how"
    )
    path, kind = folder / name, SAME
    if how in ("left out", "another shape", "another value"):
        kind, content = _damaged(content, how, data)
    packed = gzip.compress(json.dumps(content).encode(), compresslevel=1, mtime=0)
    if how == "no JSON":
        kind, packed = (
            WRONG,
            data.draw(
                st.sampled_from(
                    [
                        b"",
                        b"x",
                        gzip.compress(b""),
                        gzip.compress(b"[]"),
                        gzip.compress(b"{}"),
                        gzip.compress(b"null"),
                        gzip.compress(b"[" * 100_000),
                        gzip.compress(b"\xff"),
                        json.dumps(content).encode(),
                    ]
                )
            ),
        )
    elif how == "bytes":
        damaged = bytearray(packed)
        for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3), label="at"):
            damaged[place] ^= data.draw(st.integers(1, 255))
        kind, packed = ANY, bytes(damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) // 2, 10]))])
    path.write_bytes(packed)
    return pass_through(lambda: _read(path), kind, f"a model file, {how}", predicted)


DOOR = Door("model files", _attempt)
