"""The benchmarks of ``make bench``: ``python -m benchmarks [name ...]``. Timings; none of them is a pass or a fail."""

import sys
import time

from benchmarks import (
    composition,
    doors,
    fake_devices,
    faults,
    finetune,
    kernel_sums,
    learning,
    overhead,
    peers,
    power,
    prediction,
    public,
    questions,
    queue,
    queue_placement,
    repeat,
    schedule,
    startup,
    sweep,
)

BENCHMARKS = {module.__name__.rpartition(".")[2]: module for module in (
    startup, questions, overhead, power, peers, repeat, sweep, fake_devices, faults, composition, learning, prediction, public,
    kernel_sums, schedule, queue_placement, doors, finetune, queue)}


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
