"""What a compiler fuses: neighbours that only move memory become one kernel, and what passes between them stays in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.predict.cards.operator_kinds import ALWAYS, FUSING

__all__ = ["ALWAYS", "Node", "rows"]
_REDUCING = frozenset(("layer_norm", "group_norm", "softmax", "reduction"))
_NORMS = _REDUCING - {"reduction"}
_INDEXING = frozenset(("index", "cat", "copy"))
Traffic = Mapping[int, tuple[int, bool, int]]  # by storage: elements, whether they grow with the batch, bytes an element


@dataclass(frozen=True)
class Node:
    """One operator: its kind, and what it reads and writes."""

    kind: str
    read: Traffic
    written: Traffic


def _depths(nodes: Sequence[Node]) -> list[int]:
    """Return how many kernels of their own lie on the longest way to each operator: none fuses over such a kernel."""
    depths, writer = [], {}
    for number, node in enumerate(nodes):
        before = [writer[storage] for storage in node.read if storage in writer]
        depths.append(max((depths[maker] + (nodes[maker].kind in ALWAYS) for maker in before), default=0))
        writer |= dict.fromkeys(node.written, number)
    return depths


def _groups(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the operators that share a kernel: each joins what made its inputs, but no kernel reduces twice."""
    group, members, reduces, writer, depths = {}, {}, {}, {}, _depths(nodes)
    for number, node in enumerate(nodes):
        if node.kind in FUSING:
            group[number], members[number], reduces[number] = number, [number], node.kind in _REDUCING
            for storage in node.read:
                maker = writer.get(storage, -1)
                joining, other = group[number], group.get(maker, -1)
                if other in (-1, joining) or depths[maker] != depths[number] or (reduces[joining] and reduces[other]):
                    continue
                for moved in members[joining]:
                    group[moved] = other
                members[other] += members.pop(joining)
                reduces[other] |= reduces.pop(joining)
        writer |= dict.fromkeys(node.written, number)
    return list(members.values())


def _written(nodes: Sequence[Node], members: Sequence[int], readers: Mapping[int, set[int]]) -> Traffic:
    """Return what a fused kernel writes: what others read, once in each width that they read; and what nobody reads."""
    written, inside = {}, set(members)
    for number in members:
        for storage, (elements, scales, itemsize) in nodes[number].written.items():
            outside = readers.get(storage, set()) - inside
            widths = {nodes[reader].read[storage][2] for reader in outside}
            if outside or storage not in readers:
                written[storage] = (elements, scales, sum(widths) or itemsize)
    return written


def rows(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Return a row a fused kernel, with the bytes and elements that it must read and write."""
    readers: dict[int, set[int]] = {}
    for number, node in enumerate(nodes):
        for storage in node.read:
            readers.setdefault(storage, set()).add(number)
    kernels = []
    for members in map(sorted, _groups(nodes)):
        made, read = set(), {}
        for number in members:
            read |= {storage: size for storage, size in nodes[number].read.items() if storage not in made}
            made |= set(nodes[number].written)
        kinds = {nodes[number].kind for number in members}
        kind = "fused_norm" if kinds & _NORMS else "fused_reduction" if kinds & _REDUCING else \
            "fused_index" if kinds & _INDEXING else "fused"
        kernels.append({"kind": kind, "scales": True, **traffic(read.values(), "read"),
                        **traffic(_written(nodes, members, readers).values(), "written")})
    return kernels


def traffic(tensors: Iterable[tuple[int, bool, int]], verb: str) -> dict[str, int]:
    """Sum tensors (elements, whether they grow with the batch, bytes an element) to columns of bytes and elements.

    ``verb`` (read, written) begins the names of the columns; those that do not grow end in ``_once``.
    """
    row = dict.fromkeys((verb, f"{verb}_once", f"{verb}_elements", f"{verb}_elements_once"), 0)
    for elements, scales, itemsize in tensors:
        once = "" if scales else "_once"
        row[f"{verb}{once}"] += elements * itemsize
        row[f"{verb}_elements{once}"] += elements
    return row
