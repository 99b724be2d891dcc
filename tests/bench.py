"""The benchmarks of ``make bench``: ``python -m tests.bench [name ...]``. Timings; none of them is a pass or a fail."""

import sys
import time

from tests import (
    bench_composition,
    bench_faults,
    bench_learning,
    bench_overhead,
    bench_peers,
    bench_prediction,
    bench_public,
    bench_repeat,
    bench_schedule,
    bench_startup,
    bench_sweep,
)

BENCHMARKS = {"startup": bench_startup, "overhead": bench_overhead, "peers": bench_peers, "repeat": bench_repeat,
              "sweep": bench_sweep, "faults": bench_faults, "composition": bench_composition, "learning": bench_learning,
              "prediction": bench_prediction, "public": bench_public, "schedule": bench_schedule}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return 2 for an unknown name."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        begin = time.monotonic()
        print(f"== {name}: {BENCHMARKS[name].__doc__.splitlines()[0]}", flush=True)
        BENCHMARKS[name].main()
        print(f"   ({time.monotonic() - begin:.0f} s)\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
