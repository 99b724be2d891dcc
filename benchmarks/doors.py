"""Every door of the project fuzzed for an hour: inputs tried, what was refused, tracebacks, and what was wrong in silence."""

import collections
import os
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.doors import Door, LetThroughError
from tests.test_doors import DOORS

HOURS = float(os.environ.get("LIB_FUZZ_HOURS", "1"))
TOY = {"HOURS": 0.003}
_AT_ONCE = 200


def fuzz(door: Door, seconds: float) -> collections.Counter:
    """Try inputs at one door for so long; count outcomes (refused, read, traceback, silent) and print each failure once."""
    outcomes, failures, end, number = collections.Counter(), set(), time.monotonic() + seconds, 0

    def attempt(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[door.attempt(data, Path(folder))] += 1
            except Exception as error:  # whatever it is, it is what is looked for
                silent = isinstance(error, LetThroughError)
                outcomes["silent or unclear" if silent else "traceback"] += 1
                failures.add(f"{type(error).__name__}: {error}"[:500])

    while time.monotonic() < end:
        number += 1
        seed(number)(
            settings(
                max_examples=_AT_ONCE,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.generate],
            )(given(data=st.data())(attempt))
        )()
    for failure in sorted(failures)[:20]:
        print(f"      {failure}", file=sys.stderr)
    return outcomes


def main() -> None:
    """Print what became of the inputs at each door; the time is shared by all."""
    total = collections.Counter()
    for door in DOORS:
        outcomes = fuzz(door, HOURS * 3600 / len(DOORS))
        total += outcomes
        print(f"   {door.name:<28}" + ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items())), flush=True)
    print(
        f"   {'all':<28}{total.total():,} inputs, tracebacks {total['traceback']}, "
        f"silent or unclear {total['silent or unclear']}"
    )
