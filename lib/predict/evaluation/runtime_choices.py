"""Which condition a network is advised to run in on a CPU, and what that costs beside the best one that was measured."""

import numpy as np
import pandas as pd

from lib.predict import held_out
from lib.predict.networks import gains

EAGER = "torch eager"
_CASE = ["device", "case", "group", "batch_size"]
RULES = {"always torch eager": EAGER, "always openvino fp32": "openvino fp32", "always onnxruntime fp32": "onnxruntime fp32",
         "always torch.compile fp32": "torch.compile fp32"}


def rows() -> pd.DataFrame:
    """Return the committed predictions of gains of runtimes, int8 and threads (rows ``held_out``), with ``runs``: what ran."""
    parts = [held_out.load(path) for path in sorted(gains.FOLDER.glob("*.json"))]
    table = pd.concat(parts, ignore_index=True)
    table = table[(table["what"] == held_out.RUNTIMES) & table["usable"]]
    return table.assign(runs=table["condition"].str.partition(" to ")[2])


def choices(table: pd.DataFrame, exact: bool = False) -> pd.DataFrame:
    """Return for each network and batch of ``rows`` the best condition by prediction and by measurement, and regrets in %.

    Of the conditions that were measured of it, eager torch included; ``exact`` leaves out int8. ``regret_pct`` is the time an
    image takes in the predicted condition over the least measured one; each of RULES has its regret where it was measured.
    """
    table = table[~table["runs"].str.contains("int8")] if exact else table
    lines = []
    for case, part in table.groupby(_CASE, sort=False):
        measured = pd.Series([1.0, *part["measured"]], [EAGER, *part["runs"]])
        predicted = pd.Series([1.0, *part["predicted"]], measured.index)
        regret = (measured.max() / measured - 1) * 100
        named = predicted.idxmax()
        lines.append({**dict(zip(_CASE, case, strict=True)), "best": measured.idxmax(), "named": named,
                      "regret_pct": regret[named], **{rule: regret.get(words, np.nan) for rule, words in RULES.items()}})
    return pd.DataFrame(lines, columns=[*_CASE, "best", "named", "regret_pct", *RULES])


def summary(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return of the prediction and each rule: n, how often it names the best condition, mean and largest regret in %."""
    lines = []
    for what, regret in {"predicted": chosen["regret_pct"], **{rule: chosen[rule] for rule in RULES}}.items():
        known = {"n": int(regret.count()), "best_named_pct": float((regret.dropna() == 0).mean() * 100),
                          "regret_pct": float(regret.mean()), "largest_regret_pct": float(regret.max())}
        lines.append({"choice": what, **known})
    return pd.DataFrame(lines)
