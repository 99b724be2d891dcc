"""Numbers of complexity, for the sentences of 04_complexity, and its key numbers. FLOPs that are not known are left out."""

import pandas as pd

from lib.missing import needs
from lib.report.sentences import Numbers, extremes, first
from lib.studies.complexity.study import Study
from lib.studies.complexity.tables import product_shares


def ratios(sums: pd.DataFrame) -> Numbers:
    """Return how many forward passes a backward pass is worth; ``sums`` are ``totals``, one row a network."""
    known = sums[sums["backward_over_forward"].notna()]
    ratio = known["backward_over_forward"]
    return {"known": len(known) > 0, "least_step": 1 + ratio.min(), "most_step": 1 + ratio.max(), "below_two": ratio.max() < 2,
            "uncounted": sums[sums["uncounted"] != ""], **extremes(known, "backward_over_forward")}


def shares(groups: pd.DataFrame) -> Numbers:
    """Return the shares of convolutions, GEMMs and attention in FLOPs and bytes, %; ``groups``: ``tables.by_group``."""
    share = product_shares(groups).dropna()
    return {"shares_known": len(share) > 0, "flops_pct": share["flops"].min(), "least_bytes_pct": share["bytes"].min(),
            "most_bytes_pct": share["bytes"].max()}


@needs("networks")
def growth(batches: pd.DataFrame) -> Numbers:
    """Return how FLOPs a byte grow from the first to the last batch size; ``batches``: ``tables.intensity_by_batch``."""
    smallest, largest = batches.columns[1], batches.columns[-1]
    grown = batches.assign(growth=batches[largest] / batches[smallest])
    return {"several_sizes": largest != smallest, "smallest": smallest, "largest": largest, **extremes(grown, "growth")}


def comparisons(rows: pd.DataFrame) -> Numbers:
    """Return how many second sources agree with the counts, as they are or by a rule, and which is farthest off."""
    given = rows[rows["theirs"].notna()]
    equal, unexplained = given["difference"] == 0, given["rest"] != 0
    ratios = given[given["ours"] > 0].assign(ratio=lambda part: (part["theirs"] / part["ours"]).astype(float))
    farthest = ratios.loc[(ratios["ratio"] - 1).abs().sort_values(ascending=False).index]
    return {"given": len(given), "equal": int(equal.sum()), "explained": int((~equal & ~unexplained).sum()),
            "unexplained": int(unexplained.sum()), "silent": len(rows) - len(given) or None,
            **first(farthest, "farthest_"), **first(given[unexplained], "unexplained_")}


def key_numbers(results: Study, sums: pd.DataFrame, checks: pd.DataFrame) -> dict[str, tuple[float, str, float | None]]:
    """Return the key numbers, which must all reproduce: of the detailed network, of the comparisons, and the ratio's range.

    ``sums`` holds the totals at the smallest batch size.
    """
    name, detail = results.detail.replace(":", "-"), sums.set_index("network").loc[results.detail]
    ratio = sums["backward_over_forward"]
    numbers = {f"{name} parameters": (detail["params"], ""),
               f"{name} multiply-adds a sample": (detail["macs_forward"] / detail["batch_size"], ""),
               f"{name} saved activations": (detail["activation_mb"], "MB"),
               "comparisons with an unexplained difference": (int((checks["rest"].fillna(0) != 0).sum()), ""),
               "least backward over forward": (ratio.min(), ""), "most backward over forward": (ratio.max(), "")}
    return {key: (*number, 0.0) for key, number in numbers.items()}
