"""The most memory that the tensors of a captured pass or step occupy at once."""

from lib.measure.networks import allocator
from lib.work.graph.ops import Graph


def peak_bytes(graph: Graph) -> float:
    """Return the most bytes that a pass on a CPU occupies at once beyond weights and inputs.

    Tensors by their real lifetimes, and what convolutions take beside their outputs.
    """
    occupied, peak, sizes = 0, 0, {}
    for op, new, dead in zip(graph.ops, graph.made, graph.freed, strict=True):
        early, late = allocator.temporaries(op)
        sizes |= new
        peak = max(peak, occupied + sum(early) + sum(late), occupied + sum(late) + sum(new.values()))
        occupied += sum(new.values()) - sum(sizes[storage] for storage in dead if storage in sizes)
    return float(peak)
