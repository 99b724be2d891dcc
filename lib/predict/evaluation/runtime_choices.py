"""Which runtime a network is advised to run in on a CPU, and what that costs beside the best one that was measured."""

from collections.abc import Collection

import pandas as pd

from lib.predict import held_out
from lib.predict.networks import runtimes
from lib.predict.networks.runtimes import EAGER

_CASE = ["device", "case", "group", "batch_size"]
RULES = {"always torch eager": EAGER.label} | {f"always {label}": label for label in (
    "openvino fp32", "onnxruntime fp32", "torch.compile fp32", "openvino bf16", "openvino int8")}


def rows() -> pd.DataFrame:
    """Return the committed predictions of networks in several runtimes: rows ``held_out``, usable ones, with gains.

    ``gain`` and ``predicted_gain``: how many times as many images a second as in eager torch.
    """
    parts = [held_out.load(path) for path in sorted(runtimes.FOLDER.glob("*.json"))]
    table = pd.concat(parts, ignore_index=True)
    table = table[table["usable"].astype(bool)].reset_index(drop=True)
    eager = table.loc[table["condition"] == EAGER.label, [*_CASE, "measured", "predicted"]]
    both = table.merge(eager, on=_CASE, suffixes=("", "_eager"))
    return both.assign(gain=both["measured_eager"] / both["measured"],
                       predicted_gain=both["predicted_eager"] / both["predicted"])


def choices(table: pd.DataFrame, dtypes: Collection[str] = ("fp32", "bf16", "int8")) -> pd.DataFrame:
    """Return for each network and batch of ``rows`` the best condition by prediction and by measurement, and regrets in %.

    Of the conditions that were measured of it, in the element types ``dtypes``. ``regret_pct`` is the time an image takes in
    the predicted condition over the least measured one; each of RULES has its regret where it was measured.
    """
    table = table[table["condition"].str.split().str[1].isin(dtypes)]
    lines = []
    for case, part in table.set_index("condition").groupby(_CASE, sort=False):
        regret = (part["measured"] / part["measured"].min() - 1) * 100
        named = part["predicted"].idxmin()
        lines.append({**dict(zip(_CASE, case, strict=True)), "best": part["measured"].idxmin(), "named": named,
                      "regret_pct": regret[named], **{rule: regret.get(words) for rule, words in RULES.items()}})
    return pd.DataFrame(lines, columns=[*_CASE, "best", "named", "regret_pct", *RULES]).astype(dict.fromkeys(RULES, float))


def summary(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return of the prediction and each rule: n, how often it names the best condition, mean and largest regret in %.

    A row for each machine (``device``).
    """
    lines = []
    for device, part in chosen.groupby("device", sort=False):
        for what, regret in {"predicted": part["regret_pct"], **{rule: part[rule] for rule in RULES}}.items():
            if regret.notna().any():
                known = {"n": int(regret.count()), "best_named_pct": float((regret.dropna() == 0).mean() * 100),
                         "regret_pct": float(regret.mean()), "largest_regret_pct": float(regret.max())}
                lines.append({"machine": device, "choice": what, **known})
    return pd.DataFrame(lines)


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each machine and condition of ``rows`` but eager torch: n, gains, and errors of predicted gains in %.

    ``sign_pct``: how often the prediction is right that it is faster or slower; ``always_pct``: of the commoner of both.
    """
    lines = []
    for (device, condition), part in table[table["condition"] != EAGER.label].groupby(["device", "condition"], sort=False):
        faster, error = part["gain"] > 1, (part["predicted_gain"] / part["gain"] - 1).abs() * 100
        lines.append({"machine": device, "condition": condition, "n": len(part), "mean_gain": part["gain"].mean(),
                      "least_gain": part["gain"].min(), "most_gain": part["gain"].max(), "mape_pct": error.mean(),
                      "median_pct": error.median(),
                      "sign_pct": ((part["predicted_gain"] > 1) == faster).mean() * 100,
                      "always_pct": max(faster.mean(), 1 - faster.mean()) * 100})
    return pd.DataFrame(lines)
