"""What the counts of complexity say, in words; unknown FLOPs are said to be unknown."""


import pandas as pd

from lib.missing import needs

_UNKNOWN = "FLOPs are not known for every operator here, so no ratio can be given."
_PRODUCTS = ("convolution", "matrix product", "attention")


@needs("networks")
def ratio_words(sums: pd.DataFrame) -> str:
    """Say how many forward passes a backward pass is worth; ``sums`` are ``totals``, one row a network."""
    ratio = sums.set_index("network")["backward_over_forward"].dropna()
    if not len(ratio):
        return _UNKNOWN
    return (f"Backward over forward lies between **{ratio.min():.3f}** ({ratio.idxmin()}) and **{ratio.max():.3f}** "
            f"({ratio.idxmax()}): a training step is {1 + ratio.min():.2f} to {1 + ratio.max():.2f} forward passes, and then "
            "comes the optimizer.")


def product_shares(groups: pd.DataFrame) -> pd.DataFrame:
    """Return the share of products in each network's FLOPs and bytes, in %; ``groups`` as ``by_group`` gives them."""
    products = groups[groups["group"].isin(_PRODUCTS)].groupby("network")[["flops", "bytes"]].sum()
    whole = groups.groupby("network")[["flops", "bytes"]].agg(lambda values: values.sum(skipna=False))
    return products.reindex(whole.index, fill_value=0.0) / whole * 100


@needs("counted work")
def share_words(groups: pd.DataFrame) -> str:
    """Say which share of FLOPs and of bytes belongs to products."""
    share = product_shares(groups).dropna()
    if not len(share):
        return _UNKNOWN
    return (f"Products are **{share['flops'].min():.1f} % or more** of every network's FLOPs, but only "
            f"**{share['bytes'].min():.0f} to {share['bytes'].max():.0f} %** of its bytes.")


def intensity_by_batch(sums: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs a byte of a training step, a row a network and a column a batch size."""
    wide = sums.pivot_table(index="network", columns="batch_size", values="flops_per_byte", sort=False, dropna=False)
    return wide.rename(columns="batch {}".format).rename_axis(columns=None).reset_index()


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
    told = checks[checks["theirs"].notna() & (checks["ours"] > 0)]
    if not len(told):
        return "No second source gave a number."
    far = told.loc[((told["theirs"] - told["ours"]).abs() / told["ours"]).astype(float).idxmax()]
    return (f"The farthest is {far['source']} for {far['network']} ({far['quantity']}): **{far['theirs'] / far['ours']:.2f} "
            f"times** ours, {far['explanation'] or 'equal'}.")


def overview(sums: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``totals`` in units that people read: millions, GFLOP, MB."""
    return pd.DataFrame({"network": sums["network"], "batch": sums["batch_size"], "input": sums["input"],
                         "parameters, M": sums["params"] / 1e6, "forward, GMAC": sums["macs_forward"] / 1e9,
                         "forward, GFLOP": sums["flops_forward"] / 1e9, "backward, GFLOP": sums["flops_backward"] / 1e9,
                         "backward / forward": sums["backward_over_forward"],
                         "step, MB moved": (sums["bytes_forward"] + sums["bytes_backward"]) / 1e6,
                         "step, FLOP/byte": sums["flops_per_byte"], "kept, MB": sums["activation_mb"]})


@needs("networks")
def uncounted_words(sums: pd.DataFrame) -> str:
    """Say which operators have unknown FLOPs, and in which networks."""
    unknown = sums[sums["uncounted"] != ""].drop_duplicates("network")
    if not len(unknown):
        return "Every operator of every network is counted."
    return "FLOPs are not known, and left empty, for " + "; ".join(
        f"{row.uncounted} in {row.network}" for row in unknown.itertuples()) + "."
