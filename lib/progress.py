"""Progress of long work, shown where a person may be watching and nowhere else."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator


def watched() -> bool:
    """Return whether a person may be watching: a terminal or JupyterLab, no batch run (its runner says so) and no CI."""
    return not (os.environ.get("CI") or os.environ.get("LIB_BATCH")) and ("ipykernel" in sys.modules or sys.stderr.isatty())


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what goes on, in a line that is gone when it is over, in a terminal that somebody watches; nothing elsewhere."""
    shown = watched() and sys.stderr.isatty()
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Print a line above the progress bar where somebody watches; nothing elsewhere."""
    if watched():
        from tqdm.auto import tqdm

        tqdm.write(line, file=sys.stderr)


def track(items: Iterable, what: str = "") -> Iterable:
    """Return ``items`` with a progress bar named ``what`` where somebody watches, plain elsewhere."""
    if not watched():
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=what, leave=False, mininterval=0.5)
