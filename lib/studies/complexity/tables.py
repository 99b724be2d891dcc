"""The tables of the complexity study, as people read them: by kind of work, by layer, by batch size, and the comparisons."""

import pandas as pd

from lib.predict.analytic import complexity
from lib.work.graph import families

GROUPS = {"conv2d": "convolution", "conv3d": "convolution", "linear": "matrix product", "matmul": "matrix product",
          "bmm": "matrix product", "attention": "attention", "batch_norm": "normalisation", "layer_norm": "normalisation",
          "activation": "activation function", "pool2d": "pooling", "pool3d": "pooling"}
OTHER = "copies, additions, other"
_PRODUCTS = ("convolution", "matrix product", "attention")


def grouped(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a ``complexity`` table with a column ``group``: what kind of work each row is."""
    named = {op: GROUPS[family.name] for family in families.families().values() if family.name in GROUPS
             for op in family.covers}
    return rows.assign(group=rows["op"].map(named).fillna(OTHER))


def by_group(rows: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs and bytes of a training step by network, batch size and kind of work."""
    work = grouped(rows).assign(flops=rows["flops_forward"] + rows["flops_backward"],
                                bytes=rows["bytes_forward"] + rows["bytes_backward"])
    sums = work.groupby(["network", "batch_size", "group"], sort=False)[["flops", "bytes"]]
    return sums.agg(lambda values: values.sum(skipna=False)).reset_index()


def heaviest(rows: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the layers of one network with the most FLOPs in a training step, in millions and MB, with their share."""
    layers = complexity.by_layer(rows)
    step = layers["flops_forward"] + layers["flops_backward"]
    shown = pd.DataFrame({"layer": layers["layer"].replace("", "(the network itself)"), "parameters, k": layers["params"] / 1e3,
                          "forward, MFLOP": layers["flops_forward"] / 1e6, "backward, MFLOP": layers["flops_backward"] / 1e6,
                          "% of the step": step / step.sum() * 100, "forward, MB": layers["bytes_forward"] / 1e6,
                          "forward, FLOP/byte": layers["flops_per_byte"], "saved, MB": layers["activation_bytes"] / 1e6})
    return shown.loc[step.sort_values(ascending=False, kind="stable").index[:most]]


def product_shares(groups: pd.DataFrame) -> pd.DataFrame:
    """Return the share of convolutions, matrix products and attention in each network's FLOPs and bytes (``by_group``), %."""
    products = groups[groups["group"].isin(_PRODUCTS)].groupby("network")[["flops", "bytes"]].sum()
    everything = groups.groupby("network")[["flops", "bytes"]].agg(lambda values: values.sum(skipna=False))
    return products.reindex(everything.index, fill_value=0.0) / everything * 100


def intensity_by_batch(sums: pd.DataFrame) -> pd.DataFrame:
    """Return FLOPs a byte of a training step, a row a network and a column a batch size."""
    wide = sums.pivot_table(index="network", columns="batch_size", values="flops_per_byte", sort=False, dropna=False)
    return wide.rename(columns="batch {}".format).rename_axis(columns=None).reset_index()


def overview(sums: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``totals`` in units that people read: millions, GFLOP, MB."""
    return pd.DataFrame({"network": sums["network"], "batch": sums["batch_size"], "input": sums["input"],
                         "parameters, M": sums["params"] / 1e6, "forward, GMAC": sums["macs_forward"] / 1e9,
                         "forward, GFLOP": sums["flops_forward"] / 1e9, "backward, GFLOP": sums["flops_backward"] / 1e9,
                         "backward / forward": sums["backward_over_forward"],
                         "step, MB moved": (sums["bytes_forward"] + sums["bytes_backward"]) / 1e6,
                         "step, FLOP/byte": sums["flops_per_byte"], "saved, MB": sums["activation_mb"]})


def differing(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons that differ, and the sources that gave no number, as people read them."""
    shown = rows[rows["difference"] != 0].drop(columns=["batch_size", "explained"])
    numbers = {column: shown[column].map(lambda value: "–" if pd.isna(value) else f"{value:,.0f}")
               for column in ("ours", "theirs", "difference", "rest")}
    return shown.assign(**numbers)
