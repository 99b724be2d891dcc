"""How far the road of one answer is: the calls from one file of lib into another, from the query to the predicted time.

Each call counts once, however often it runs: it is what a reader who follows the answer has to open next.
"""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from lib.predict.advice.advise import advise
from lib.work.run_config import RunConfig

NETWORK, DEVICE = "resnet50", "rtx-4090"
QUERY = {"batch_size": 256, "dtype": "fp16", "compiled": True}
TOY = {"NETWORK": "resnet18"}
_LIB = Path(__file__).parents[1] / "lib"
_WORK = _LIB / "work"  # capturing a network's graph is a road of its own


def calls(network: str, device: str) -> list[tuple[str, str]]:
    """Return the distinct calls between files while one query is answered, in order: caller and called, as file:function."""
    found: dict[tuple[str, str], None] = {}

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (called := _name(frame.f_code)):
            return
        caller = frame.f_back
        while caller and not _name(caller.f_code):
            caller = caller.f_back  # through libraries, such as a cached property
        if caller and _name(caller.f_code).partition(":")[0] != called.partition(":")[0]:
            found[_name(caller.f_code), called] = None

    sys.setprofile(enter)
    try:
        advise(RunConfig(network, **QUERY), [device])
    finally:
        sys.setprofile(None)
    return list(found)


@cache
def _name(code: CodeType) -> str:
    """Return file and function of code in lib, empty for others; capturing a graph (lib/work) is one place."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_LIB):
        return ""
    return "lib/work:" if path.is_relative_to(_WORK) else f"{path.relative_to(_LIB.parent)}:{code.co_qualname}"


def main() -> None:
    """Count the calls between files on the road of one answer, its files, and what is called from most places."""
    advise(RunConfig(NETWORK, **QUERY), [DEVICE])  # imports and caches
    road = calls(NETWORK, DEVICE)
    files = Counter(called.partition(":")[0] for _, called in road)
    print(f"   {NETWORK} on {DEVICE}: {len(road)} calls from one file into another, in {len(files)} files")
    print("   called from most places: " + ", ".join(f"{file} {count}" for file, count in files.most_common(6)))
