"""Power of published training loops, with and without limits, cards and networks left out, beside baselines: errors in %."""

import numpy as np
import pandas as pd

from lib import paths
from lib.predict.evaluation import power_limits
from lib.predict.power.limits import QUANTITIES, draw
from lib.predict.scores import score

ZEUS = paths.ROOT.parent / "shared" / "data" / "zeus-power"
MOST = 1_000_000  # rows
TOY = {"MOST": 200}
BUSY = 0.5  # of the most power, under which a network waits for its host


def answers(train: pd.DataFrame, rows: pd.DataFrame) -> dict[str, dict]:
    """Return the factors of time and energy by learners; rows without a roofline have no predicted power."""
    model, short = power_limits.fit(train), np.minimum(1, rows["limit"] / rows["drawn"])
    log = np.log(train["limit"])
    return {"power predicted": power_limits.predicted(model, rows),
            "power measured": model.factors(model.static * rows["bit"], rows["limit"], rows["drawn"]),
            "no change": {name: pd.Series(1.0, rows.index) for name in QUANTITIES},
            "measured power over limit": {"time": 1 / short, "energy": short},
            "power of the limit": {name: rows["limit"] ** (log @ np.log(train[name]) / (log @ log)) for name in QUANTITIES}}


def power_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Score the power drawn without a limit, each card and network left out."""
    loops = rows.dropna(subset="busy").drop_duplicates(["device", "dataset", "network", "batch_size", "optimizer"])
    lines = []
    for unit in power_limits.SPLITS:
        for left_out, test in loops.groupby(unit):
            model = power_limits.fit(rows[rows[unit] != left_out])
            predicted = draw(model.drawn, model.static * test["bit"], test["busy"], test["memory"])
            lines.append({"left out": left_out, **score(test["drawn"].to_numpy(), predicted.to_numpy(), interval=False)})
    return pd.DataFrame(lines)[["left out", "n", "mape", "median", "bias"]]


def main() -> None:
    """Print errors by what was left out; ``known``: of networks whose power can be predicted, which all learners share."""
    if not ZEUS.is_dir():
        print(f"   skipped: {ZEUS} is not there")
        return
    rows = power_limits.read(ZEUS)
    rows = rows.sample(min(MOST, len(rows)), random_state=0)
    known = {"known": rows["busy"].notna(), "all": rows["busy"].notna() | True, "waiting for the host": rows["drawn"] < BUSY}
    lines = []
    for unit in power_limits.SPLITS:
        for left_out, test in rows.groupby(unit):
            for learner, factors in answers(rows[rows[unit] != left_out], test).items():
                lines += [{"left out": left_out, "of": what, "rows": which, "learner": learner, **score(
                    test.loc[chosen, what].to_numpy(), factors[what][chosen].to_numpy(), interval=False)}
                    for what in QUANTITIES for which, chosen in known.items()]
    table = pd.DataFrame(lines).query("n > 0")
    print(table.pivot_table(index=["of", "rows", "left out", "n"], columns="learner", values="mape").round(1).to_string())
    print("\npower drawn without a limit\n" + power_errors(rows).round(1).to_string(index=False))
