"""How fast this processor was each time that it was looked at, and what times to expect on a host that is shared.

On a virtual machine nothing has one time: the reference kernel's medians differ by a factor of two within a minute. Predictions
are of a processor at its usual speed; what will happen depends on the speed now and on how it has varied here. While other
processes hold the cores, the kernel's time is not the processor's speed.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from lib import csv_files, files, paths, store
from lib.errors import InputError
from lib.measure import load, machine
from lib.measure.reference_kernel import ELASTICITY, USUAL, ReferenceKernel
from lib.measure.statistics import UNUSABLE

_RUN_S, _SETTLE_S = 0.1, 0.05
_LEAST, _SHARED = 20, 1.9  # looks from which on history speaks for itself; what a shared host was seen to slow the kernel by
_BUSY = 4.0  # times the usual time from which other processes hold the cores, whether or not the system shows them
_KEPT = 2000  # looks
_ENDS = (5, 95)  # percentiles: nine looks of ten lie between


@dataclass(frozen=True)
class Speed:
    """The reference kernel's ms: usual, now, and the ends that nine looks of ten lie between; ``looks`` there were.

    ``not_kept`` says why this look is not in the history. ``busy`` says what held the cores during this look: the speed now is
    then unknown (NaN). Without any look the usual speed is unknown, too.
    """

    usual_ms: float
    now_ms: float
    fast_ms: float
    slow_ms: float
    looks: int
    not_kept: str = ""
    busy: str = ""

    @classmethod
    def from_history(cls, history_ms: np.ndarray, not_kept: str = "", busy: str = "") -> "Speed":
        """Return the speed by all looks, the last one now unless the machine was ``busy``.

        Looks at a busy machine do not count. With few looks the processor may be as slow as a shared one.
        """
        quiet_ms = history_ms[:-1] if busy else history_ms
        if not len(quiet_ms):
            return cls(*[np.nan] * 4, 0, not_kept, busy)
        now_ms = quiet_ms[-1]
        quiet_ms = quiet_ms[quiet_ms <= _BUSY * np.percentile(quiet_ms, USUAL, method="lower")]
        usual, fast, slow = map(float, np.percentile(quiet_ms, (USUAL, *_ENDS)))
        if not busy and now_ms > _BUSY * usual:
            busy = f"the reference kernel takes {now_ms / usual:,.0f} times its usual time"
        few = len(quiet_ms) < _LEAST
        return cls(usual, np.nan if busy else float(now_ms), fast, max(slow, usual * _SHARED) if few else slow, len(quiet_ms),
                   not_kept, busy)

    @property
    def share(self) -> float:
        """Return the speed now as a share of the usual one."""
        return self.usual_ms / self.now_ms

    def expected(self, predicted_ms: float, low_ms: float, high_ms: float, elasticity: float = ELASTICITY) -> dict[str, float]:
        """Return a time ``now``, and the ends of what nine runs of ten will take here, in ms.

        ``predicted_ms`` and its interval are at the usual speed; other work follows the kernel with the power ``elasticity``.
        """
        def ms(kernel_ms: float) -> float:
            return predicted_ms * (kernel_ms / self.usual_ms) ** elasticity

        fast_ms, slow_ms = predicted_ms, predicted_ms * _SHARED**elasticity
        if self.looks:
            fast_ms, slow_ms = ms(self.fast_ms), ms(self.slow_ms)
        below = np.hypot(np.log(predicted_ms / low_ms), np.log(predicted_ms / min(predicted_ms, fast_ms)))
        above = np.hypot(np.log(high_ms / predicted_ms), np.log(max(predicted_ms, slow_ms) / predicted_ms))
        return {"now_ms": ms(self.now_ms), "here_low_ms": predicted_ms * float(np.exp(-below)),
                "here_high_ms": predicted_ms * float(np.exp(above))}


def look() -> Speed:
    """Run the reference kernel for a tenth of a second, add its median to the history of this machine, and return the speed.

    The median is not added while other processes hold a core.
    """
    kernel, watch, begin, taken = ReferenceKernel(torch.device("cpu")), load.LoadWatch(), time.perf_counter(), []
    while (elapsed := time.perf_counter() - begin) < _SETTLE_S + _RUN_S:
        ms = kernel.ms()
        taken += [ms] if elapsed > _SETTLE_S else []
    now_ms, beside = float(np.median(taken or [ms])), watch.reading()
    busy = beside.words() if beside.verdict(torch.get_num_threads()) == UNUSABLE else ""
    path = paths.DATA / "speed" / f"{machine.ids()['hardware_id']}_{torch.get_num_threads()}_threads.csv"
    table = csv_files.with_columns(path, ("utc", "kernel_ms"), "delete it: it is the history of this processor's speed")
    good = table[(table["kernel_ms"] > 0) & np.isfinite(table["kernel_ms"])] if len(table) else table
    history = [*good[["utc", "kernel_ms"]].tail(_KEPT).itertuples(index=False, name=None), (store.utc_now(), now_ms)]
    not_kept, kept = "", history[:-1] if busy else history
    try:
        files.replace(path, "".join(["utc,kernel_ms\n", *(f"{utc},{ms:.6g}\n" for utc, ms in kept)]).encode())
    except InputError as error:  # a disk that is full or read-only keeps no answer back
        not_kept = str(error)
    return Speed.from_history(np.array([ms for _, ms in history]), not_kept, busy)
