"""Time and energy of training loops under power limits, each card left out, beside simple rules: errors in %."""

import numpy as np
import pandas as pd

from lib import paths
from lib.predict import held_out
from lib.predict.evaluation import power_limits
from lib.predict.power.energy import QUANTITIES
from lib.predict.power.limits import PATH
from lib.predict.scores import score

ZEUS = paths.ROOT.parent / "shared" / "data" / "zeus-power"
MOST = 1_000_000  # rows
TOY = {"MOST": 200}
BUSY = 0.5  # of the most power, under which a network waits for its host


def answers(train: pd.DataFrame, rows: pd.DataFrame) -> dict[str, dict]:
    """Return the factors of time and energy by learners, from the power measured without a limit."""
    model, short = power_limits.fit(train), np.minimum(1, rows["limit"] / rows["drawn"])
    log = np.log(train["limit"])
    return {"power measured": model.factors(model.static * rows["bit"], rows["limit"], rows["drawn"]),
            "no change": {name: pd.Series(1.0, rows.index) for name in QUANTITIES},
            "measured power over limit": {"time": 1 / short, "energy": short},
            "power of the limit": {name: rows["limit"] ** (log @ np.log(train[name]) / (log @ log)) for name in QUANTITIES}}


def main() -> None:
    """Print errors by card left out; ``known``: of networks whose power is predicted, as the committed rows have it."""
    if not ZEUS.is_dir():
        print(f"   skipped: {ZEUS} is not there")
        return
    predicted = held_out.load(PATH)
    lines = [{"left out": device, "of": name, "rows": "known", "learner": "power predicted",
              **score(part["measured"].to_numpy(), part["predicted"].to_numpy(), interval=False)}
             for name, what in held_out.LIMITS.items()
             for device, part in predicted[predicted["what"] == what].groupby("device")]
    rows = power_limits.read(ZEUS)
    rows = rows.sample(min(MOST, len(rows)), random_state=0)
    kinds = {"known": rows["model"] != "", "all": rows["model"].notna(), "waiting for the host": rows["drawn"] < BUSY}
    for device, test in rows.groupby("device"):
        for learner, factors in answers(rows[rows["device"] != device], test).items():
            lines += [{"left out": device, "of": what, "rows": which, "learner": learner, **score(
                test.loc[chosen, what].to_numpy(), factors[what][chosen].to_numpy(), interval=False)}
                for what in QUANTITIES for which, chosen in kinds.items()]
    table = pd.DataFrame(lines).query("n > 0")
    print(table.pivot_table(index=["of", "rows", "left out", "n"], columns="learner", values="mape").round(1).to_string())
