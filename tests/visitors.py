"""Workers of sweeps that start no process: one that visits in this one, and one that only says what a visit gave."""

import gc
from contextlib import ExitStack

from lib.measure import machine
from lib.measure.disturbance import GpuUse
from lib.measure.energy.trace import NOT_MEASURED
from lib.work.graph import spaces

SWEEPS = spaces.load_sweeps()


def draw_small(patch, padding=(0, 2), **grid):
    """Have sweeps draw small points alone, or those of a grid ``pools``, of which those with a padding of 2 are invalid."""
    axes = {"kind": ["max"], "batch": [1], "in_channels": [2], "height": list(range(8, 14)), "width": "height", "kernel_h": [2],
            "kernel_w": [2], "stride_h": [2], "stride_w": [2], "padding_h": list(padding), "padding_w": [0]}
    small = spaces.Limits(most_flops=1e6, most_bytes=1e6)
    limited = SWEEPS.model_copy(update={"limits": dict.fromkeys(("cpu", "cuda", "mps"), small),
                                        "grids": {"pools": spaces.Grid(op="pool2d", axes=axes, **grid)}})
    patch.setattr(spaces, "load_sweeps", lambda *_: limited)


def visited(**changed):
    """Return what a good visit gave, but for what is ``changed``."""
    return {"latency_ms": 1.0, "spread_ms": 0.0, "yardstick_ms": 1.0, "n": 5, "calls": 5, "at_s": 0.0, "visit_s": 0.05,
            "other_cores": 0.0, "stolen_cores": 0.0, "status": "ok", "reason": "", **GpuUse().columns, **changed}


def identified(**changed):
    """Return what a worker is ready with, but for what is ``changed``."""
    return {**machine.identity(), "threads": 1, "card": "", "spare_cores": 0, "free_bytes": 1e12, "meter": NOT_MEASURED,
            **changed}


class Visitor:
    """Stands in for a worker whose visits are good and alike, no two of them to the last digit."""

    def __init__(self, device, p):
        self.device, self.visits = device, 0

    def ready(self):
        return identified()

    def visit(self, config, ops):
        self.visits += 1
        return visited(latency_ms=1 + 1e-6 * self.visits)

    def shut_down(self):
        pass


class InProcess:
    """A ``Service`` without a process: what would run there runs here."""

    def __init__(self, service, *arguments, environment):
        self._service, self._opened = service(*arguments), ExitStack()

    def ready(self):
        ready, self._respond = self._opened.enter_context(self._service)
        self._opened.callback(gc.enable)
        return ready

    def ask(self, request, timeout_s):
        return self._respond(request)

    def shut_down(self):
        self._opened.close()
