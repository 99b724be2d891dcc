"""All errors of predictions in one table, beside those of the last commit: by question, of outsiders, of KernelBench."""

import numpy as np
import pandas as pd

from lib import paths
from lib.predict import held_out
from lib.predict.gpu import model
from lib.predict.trust import errors, scoreboard

PATH = paths.ROOT / "benchmarks" / "guard.csv"
TOY = {}
_OUTSIDERS = {"n": "n", "mape_pct": "mean error %", "inside_pct": "inside %", "range_width": "high/low"}
_SAME = ["device", "condition", "source", "case"]
_REACH = {"A": 1.25, "B": 1.5, "C": 2.5}  # letters of advise, by the reach of a range


def of_modules() -> pd.DataFrame:
    """Return the scores of KernelBench's modules, board and module left out, beside those of the simple rule."""
    rows = held_out.load(model.PATH)
    rows = rows[rows["source"].str.startswith("KernelBench")]
    rule = rows[rows["what"] == held_out.RULE].set_index(_SAME)["predicted"].rename("rule")
    rows = rows[rows["what"] == held_out.NEW_CARDS].join(rule, on=_SAME)
    rows = rows.assign(board=rows["source"].str.partition(", ")[2], way=rows["condition"].str.partition("-")[0])
    parts = dict(list(rows.groupby("way")))
    parts |= {f"{way}, at least 0.2 ms": part[part["measured"] >= 0.2] for way, part in parts.items()}
    parts |= {f"{way}, {board}": part for (way, board), part in rows.groupby(["way", "board"])}
    return pd.DataFrame({f"KernelBench, {name}": _scores(part) for name, part in parts.items()}).T


def _scores(rows: pd.DataFrame) -> dict[str, float]:
    error, rule = (np.log(rows[name] / rows["measured"]) for name in ("predicted", "rule"))
    size, reach = np.abs(np.expm1(error)), np.sqrt(rows["high"] / rows["low"])
    doubted, wrong = reach > _REACH["B"], size > 0.5
    return {"n": len(rows), "median %": 100 * size.median(), "off by 2x %": 100 * (error.abs() > np.log(2)).mean(),
            "inside %": 100 * rows["measured"].between(rows["low"], rows["high"]).mean(),
            "high/low": (rows["high"] / rows["low"]).median(), "factor": np.exp(error.abs().mean()),
            "factor of the rule": np.exp(rule.abs().mean()),
            "wrong by half, of letters C and D, %": 100 * wrong[doubted].mean() if doubted.any() else np.nan,
            "letters C and D, of wrong by half, %": 100 * doubted[wrong].mean() if wrong.any() else np.nan}


def numbers() -> pd.DataFrame:
    """Return ``case, number, value``: each question, each table of outsiders, KernelBench."""
    questions = errors.graded(errors.table()).drop(columns="grade").set_index("answer to")
    others = scoreboard.summary(scoreboard.shipped())
    others.index = others["source"] + ", " + others["device"] + ", " + others["question"]
    parts = [questions, others[list(_OUTSIDERS)].rename(columns=_OUTSIDERS), of_modules()]
    stacked = [part.rename_axis("case").reset_index().melt("case", var_name="number") for part in parts]
    table = pd.concat(stacked, ignore_index=True)
    return table.astype({"value": float}).dropna().round({"value": 3}).sort_values(["case", "number"], ignore_index=True)


def main() -> None:
    """Print what moved since the last commit, and write the table."""
    table = numbers()
    both = pd.read_csv(PATH).merge(table, how="outer", on=["case", "number"], suffixes=("_before", ""))
    moved = both[both["value"].round(2) != both["value_before"].round(2)]
    print(moved.to_string(index=False) if len(moved) else "   nothing moved")
    table.to_csv(PATH, index=False)
