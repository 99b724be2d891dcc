"""Two interleaved rounds of profiled runs of every workload, then one beside a busy process: do they agree, or say so?"""

import os
import subprocess
import sys
import tempfile

from benchmarks.processes import busy_neighbour
from lib.config import definitions

PROGRAM = """
import sys
from lib.measure.training import profile_run, summary
from lib.config.notebooks import ProfileParams
run = profile_run.measure(ProfileParams(workload=sys.argv[1], budget_s=float(sys.argv[2])))
rows = summary.steady(run.rows)
phases = rows[["loader_wait_ms", "h2d_ms", "forward_time_ms", "backward_time_ms", "optimizer_ms"]].sum(axis=1)
unexplained = ((rows["step_time_ms"] - phases).abs() / rows["step_time_ms"]).groupby(rows["task_type"]).median()
shares = " ".join(f"{kind} {share:.3%}" for kind, share in unexplained.items())
print(run.run["step_median_ms"], run.run["verdict"], shares, run.run["reason"] or "-", sep="|")
"""
BUDGET_S = 20
WORKLOADS, CROWDED = tuple(definitions.workloads()), ("W1", "W3", "W6")
TOY = {"BUDGET_S": 1, "WORKLOADS": ("W6",), "CROWDED": ("W6",)}


def _run(workload: str, home: str) -> tuple[float, str, str, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, workload, str(BUDGET_S)], capture_output=True, text=True, check=True,
                          env={**os.environ, "LIB_OUTPUT": home})
    median, verdict, shares, reason = done.stdout.strip().splitlines()[-1].split("|", 3)
    return float(median), verdict, shares, reason


def main() -> None:
    """Print, for each workload, the two medians, how far apart they are, both verdicts and what the phases leave over."""
    with tempfile.TemporaryDirectory() as home:
        first = {name: _run(name, home) for name in WORKLOADS}
        second = {name: _run(name, home) for name in WORKLOADS}
        silent = 0
        for name, (one, verdict, shares, _) in first.items():
            two, again, _, reason = second[name]
            apart = two / one - 1
            silent += abs(apart) > 0.03 and verdict == again == "stable"
            print(f"   {name}: {one:8.1f} ms {verdict:8} {two:8.1f} ms {again:8} {apart:+6.1%}   unexplained: {shares}   "
                  f"{reason}")
        print(f"   pairs more than 3 % apart that both passed as stable: {silent} of {len(first)}")
        with busy_neighbour():
            for name in CROWDED:
                median, verdict, _, reason = _run(name, home)
                print(f"   {name} beside a busy process: {median:.1f} ms, {verdict} ({reason})")
