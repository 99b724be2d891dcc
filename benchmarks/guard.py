"""All errors of predictions in one table, beside those of the last commit: by question, of outsiders, and as judged."""

import pandas as pd

from benchmarks import judge
from lib import paths
from lib.predict.trust import errors, scoreboard

PATH = paths.ROOT / "benchmarks" / "guard.csv"
MODULES = judge.MOST
TOY = {"MODULES": 3}
_OUTSIDERS = {"n": "n", "mape_pct": "mean error %", "inside_pct": "inside %", "range_width": "high/low"}


def numbers() -> pd.DataFrame:
    """Return ``case, number, value``: each question, each table of outsiders, each part of the judgement."""
    questions = errors.graded(errors.table()).drop(columns="grade").set_index("answer to")
    others = scoreboard.summary(scoreboard.shipped())
    others.index = others["source"] + ", " + others["device"] + ", " + others["question"]
    parts = [questions, others[list(_OUTSIDERS)].rename(columns=_OUTSIDERS)]
    if judge.FOLDER.is_dir():
        parts.append(judge.scored(judge.judged(MODULES)).add_prefix("KernelBench, ", axis=0))
    stacked = [part.rename_axis("case").reset_index().melt("case", var_name="number") for part in parts]
    table = pd.concat(stacked, ignore_index=True)
    return table.astype({"value": float}).dropna().round({"value": 3}).sort_values(["case", "number"], ignore_index=True)


def main() -> None:
    """Print what moved since the last commit, and write the table where all of it could be computed."""
    table = numbers()
    both = pd.read_csv(PATH).merge(table, how="outer", on=["case", "number"], suffixes=("_before", ""))
    moved = both[both["value"].round(2) != both["value_before"].round(2)]
    print(moved.to_string(index=False) if len(moved) else "   nothing moved")
    if judge.FOLDER.is_dir() and MODULES == judge.MOST:
        table.to_csv(PATH, index=False)
    else:
        print(f"   {PATH.name} stays as it is: the judgement was not computed in full")
