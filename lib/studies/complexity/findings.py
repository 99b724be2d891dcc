"""What the counts of complexity say, in words; FLOPs that are not known are named. And the key numbers."""

import pandas as pd

from lib.missing import needs
from lib.studies.complexity.study import Study
from lib.studies.complexity.tables import product_shares

_UNKNOWN = "FLOPs are not known for every operator here, so no ratio can be given."


@needs("networks")
def ratio_words(sums: pd.DataFrame) -> str:
    """Say how many forward passes a backward pass is worth; ``sums`` are ``totals``, one row a network."""
    ratio = sums.set_index("network")["backward_over_forward"].dropna()
    if not len(ratio):
        return _UNKNOWN
    return (f"Backward over forward lies between **{ratio.min():.3f}** ({ratio.idxmin()}) and **{ratio.max():.3f}** "
            f"({ratio.idxmax()}): a training step is {1 + ratio.min():.2f} to {1 + ratio.max():.2f} forward passes, and then "
            "comes the optimizer." + (" The usual factor of two is an upper bound." if ratio.max() < 2 else ""))


@needs("counted work")
def share_words(groups: pd.DataFrame) -> str:
    """Say which share of FLOPs and of bytes belongs to convolutions, matrix products and attention."""
    share = product_shares(groups).dropna()
    if not len(share):
        return _UNKNOWN
    return (f"Convolutions, matrix products and attention are **{share['flops'].min():.1f} % or more** of every network's "
            "FLOPs, but only "
            f"**{share['bytes'].min():.0f} to {share['bytes'].max():.0f} %** of its bytes.")


@needs("networks")
def growth_words(batches: pd.DataFrame) -> str:
    """Say how FLOPs a byte grow from the first to the last batch size of ``intensity_by_batch``."""
    first, last = batches.columns[1], batches.columns[-1]
    grown = (batches[last] / batches[first]).set_axis(batches["network"]).dropna()
    if not len(grown) or first == last:
        return "One batch size shows no growth." if len(grown) else _UNKNOWN
    return (f"From {first} to {last} the FLOPs a byte grow by a factor of {grown.min():.1f} ({grown.idxmin()}) to "
            f"{grown.max():.1f} ({grown.idxmax()}): what gains is a network with many weights for its work.")


@needs("comparisons")
def farthest_words(checks: pd.DataFrame) -> str:
    """Say which second source is farthest from our counts, relative to them."""
    given = checks[checks["theirs"].notna() & (checks["ours"] > 0)]
    if not len(given):
        return "No second source gave a number."
    far = given.loc[((given["theirs"] - given["ours"]).abs() / given["ours"]).astype(float).idxmax()]
    return (f"The farthest is {far['source']} for {far['network']} ({far['quantity']}): **{far['theirs'] / far['ours']:.2f} "
            f"times** ours, {far['explanation'] or 'equal'}.")


@needs("networks")
def uncounted_words(sums: pd.DataFrame) -> str:
    """Say which operators have unknown FLOPs, and in which networks."""
    unknown = sums[sums["uncounted"] != ""].drop_duplicates("network")
    if not len(unknown):
        return "Every operator of every network is counted."
    return "FLOPs are not known, and left empty, for " + "; ".join(
        f"{row.uncounted} in {row.network}" for row in unknown.itertuples()) + "."


@needs("comparisons")
def explained_words(rows: pd.DataFrame) -> str:
    """Say how many comparisons are equal, how many differ by what a rule explains, and how many do not."""
    given = rows[rows["theirs"].notna()]
    equal, left = given["difference"] == 0, given["rest"] != 0
    silent = f"; {len(rows) - len(given)} sources gave no number" if len(given) < len(rows) else ""
    return (f"Of **{len(given)}** comparisons **{equal.sum()}** are equal to the last digit, **{(~equal & ~left).sum()}** "
            f"differ by exactly what a rule explains, **{left.sum()}** by more{silent}.")


@needs("comparisons")
def trust_words(rows: pd.DataFrame) -> str:
    """Say whether the counts can be built upon."""
    given = rows[rows["theirs"].notna()]
    unexplained = given[given["rest"] != 0]
    if unexplained.empty:
        return (f"All {len(given)} comparisons agree with the counts once each source's own rules are applied: times can be "
                "divided by them.")
    return (f"{len(unexplained)} of {len(given)} comparisons differ for no known reason, the first in "
            f"{unexplained['network'].iloc[0]} ({unexplained['quantity'].iloc[0]}): rates of those networks are in doubt.")


def key_numbers(results: Study, first: pd.DataFrame, checks: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers, which must all reproduce: of the detailed network, of the comparisons, and the ratio's range.

    ``first`` holds the totals at the smallest batch size.
    """
    name, sums = results.detail.replace(":", "-"), first.set_index("network").loc[results.detail]
    ratio = first["backward_over_forward"]
    numbers = {f"{name} parameters": (sums["params"], ""),
               f"{name} multiply-adds a sample": (sums["macs_forward"] / sums["batch_size"], ""),
               f"{name} saved activations": (sums["activation_mb"], "MB"),
               "comparisons with an unexplained difference": (int((checks["rest"].fillna(0) != 0).sum()), ""),
               "least backward over forward": (ratio.min(), ""), "most backward over forward": (ratio.max(), "")}
    return {key: (*number, 0.0) for key, number in numbers.items()}
