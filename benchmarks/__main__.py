"""The benchmarks of ``make bench``: ``python -m benchmarks [name ...]``. Timings; none of them is a pass or a fail.

``--toy`` runs each at the sizes of its TOY, to see that it still works; its figures then say nothing.
"""

import argparse
import sys
import time
from importlib import import_module

BENCHMARKS = ("startup questions overhead power power_limits peers repeat sweep fake_devices faults learning prediction "
              "gemm_power kernel_sums judge guard road schedule finetune queue runtime_calls machines").split()
BY_NAME_ALONE = {"machines"}  # it takes more than an hour


def main(words: list[str]) -> int:
    """Run the named benchmarks, or all; return 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--toy", action="store_true", help="at the smallest sizes")
    options = parser.parse_args(words)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        print(f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in options.names or [name for name in BENCHMARKS if name not in BY_NAME_ALONE]:
        benchmark, begin = import_module(f"benchmarks.{name}"), time.monotonic()
        print(f"== {name}: {benchmark.__doc__.splitlines()[0]}", flush=True)
        for size, value in (benchmark.TOY if options.toy else {}).items():
            setattr(benchmark, size, value)
        benchmark.main()
        print(f"   ({time.monotonic() - begin:.0f} s)\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
