"""``python -m lib <verb>``: see ``lib/cli``."""

import gc
import os
import sys

from lib.cli.main import main
from lib.work.building.deferred import defer_compiler

if __name__ == "__main__":
    gc.set_threshold(1_000_000)  # importing makes many objects and no garbage
    answers = sys.argv[1:2] in (["advise"], ["advise-op"])
    if answers:
        defer_compiler()
    status = main()
    if answers:  # skip the interpreter's clean-up of torch, which takes as long as importing it
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)
    sys.exit(status)
