"""Progress bars, shown where a person may be watching."""

import os
import sys
from collections.abc import Iterable


def watched() -> bool:
    """Return whether a person may be watching: a terminal or JupyterLab, no batch run and no CI."""
    batch = os.environ.get("CI") or os.environ.get("LIB_BATCH")
    return not batch and ("ipykernel" in sys.modules or sys.stderr.isatty())


def track(items: Iterable, what: str = "") -> Iterable:
    """Return ``items`` with a progress bar named ``what`` where somebody watches."""
    if not watched():
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=what, leave=False, mininterval=0.5)


def say(line: str) -> None:
    """Print a line above the progress bar where somebody watches."""
    if watched():
        from tqdm.auto import tqdm

        tqdm.write(line, file=sys.stderr)
