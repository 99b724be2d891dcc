"""What a compiler fuses: neighbours that only move memory become one kernel, and no tensor between them goes through memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lib.predict.gpu.kinds import ALWAYS, FUSING

_REDUCING = frozenset(("layer_norm", "group_norm", "softmax", "reduction"))
_KINDS = {"fused_norm": _REDUCING - {"reduction"}, "fused_reduction": _REDUCING,
          "fused_index": frozenset(("index", "cat", "copy"))}  # a kernel is of the first kind that one of its operators is of
Traffic = Mapping[int, tuple[int, bool, int]]  # by storage: elements, whether they grow with the batch, bytes an element


class Node(NamedTuple):
    """One operator: its kind, what it reads and writes, and whether it reduces."""

    kind: str
    read: Traffic
    written: Traffic
    reduces: bool = False


def _groups(nodes: Sequence[Node]) -> Iterable[list[int]]:
    """Return the operators that share a kernel: each joins the operators that made its inputs, but no kernel reduces twice.

    Operators before and after an unfusable kernel never share a kernel. Depth counts such kernels on the longest path.
    """
    group, members, reduces, writer, depths = {}, {}, {}, {}, []
    for number, node in enumerate(nodes):
        makers = [writer[storage] for storage in node.read if storage in writer]
        depths.append(max((depths[maker] + (nodes[maker].kind in ALWAYS) for maker in makers), default=0))
        if node.kind in FUSING:
            group[number], members[number], reduces[number] = number, [number], node.reduces or node.kind in _REDUCING
            for maker in makers:
                joining, other = group[number], group.get(maker, group[number])
                if other == joining or depths[maker] != depths[number] or (reduces[joining] and reduces[other]):
                    continue
                group |= dict.fromkeys(members[joining], other)
                members[other] += members.pop(joining)
                reduces[other] |= reduces.pop(joining)
        writer |= dict.fromkeys(node.written, number)
    return members.values()


def rows(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Return one row per fused kernel, with the bytes and elements that it must read and write.

    A kernel writes tensors that other kernels read (once per element width), and tensors that nobody reads.
    """
    readers = defaultdict(set)
    for number, node in enumerate(nodes):
        for storage in node.read:
            readers[storage].add(number)
    kernels = []
    for members in map(sorted, _groups(nodes)):
        made, read, written = set(), {}, {}
        for number in members:
            read |= {storage: size for storage, size in nodes[number].read.items() if storage not in made}
            made |= set(nodes[number].written)
            for storage, (elements, scales, itemsize) in nodes[number].written.items():
                outside = readers[storage] - set(members)
                if outside or not readers[storage]:
                    widths = {nodes[reader].read[storage][2] for reader in outside}
                    written[storage] = (elements, scales, sum(widths) or itemsize)
        kinds = {nodes[number].kind for number in members}
        kind = next((name for name, of_it in _KINDS.items() if kinds & of_it), "fused")
        if kind != "fused_norm" and any(nodes[number].reduces for number in members):
            kind = "fused_reduction"
        kernels.append({"kind": kind, "scales": True, "launches": 1, **traffic(read.values(), written.values())})
    return kernels


def traffic(read: Iterable[tuple[int, bool, int]], written: Iterable[tuple[int, bool, int]]) -> dict[str, int]:
    """Sum tensors (elements, whether they grow with the batch, bytes an element) to columns of bytes and elements.

    Names of columns begin with ``read`` or ``written``; those that do not grow end in ``_once``.
    """
    row = {}
    for verb, tensors in (("read", read), ("written", written)):
        row |= dict.fromkeys((verb, f"{verb}_once", f"{verb}_elements", f"{verb}_elements_once"), 0)
        for elements, scales, itemsize in tensors:
            once = "" if scales else "_once"
            row[f"{verb}{once}"] += elements * itemsize
            row[f"{verb}_elements{once}"] += elements
    return row
