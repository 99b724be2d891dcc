"""The most memory that the tensors of a captured pass or step occupy at once."""

from lib.measure.networks.allocator import Plan


def peak_bytes(plan: Plan) -> float:
    """Return the most bytes that a pass on a CPU occupies at once beyond weights and inputs.

    Tensors by their real lifetimes, and what convolutions take beside their outputs.
    """
    occupied, peak, sizes = 0, 0, {}
    for (early, late), made, dead in zip(plan.beside, plan.made, plan.freed, strict=True):
        new = sum(size for _, size in made)
        sizes |= dict(made)
        peak = max(peak, occupied + sum(early) + sum(late), occupied + sum(late) + new)
        occupied += new - sum(sizes[storage] for storage in dead if storage in sizes)
    return float(peak)
