"""How fast this processor was each time that it was looked at, and what times to expect on a host that is shared.

On a virtual machine nothing has one time: the reference kernel's medians differ by a factor of two within a minute. Predictions
are of a processor at its usual speed; what will happen depends on the speed now and on how it has varied here.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from lib import csv_files, files, paths, store
from lib.errors import InputError
from lib.measure import machine
from lib.measure.reference_kernel import ELASTICITY, USUAL, ReferenceKernel

_RUN_S, _SETTLE_S = 0.1, 0.05
_LEAST, _SHARED = 20, 1.9  # looks from which on history speaks for itself; what a shared host was seen to slow the kernel by
_KEPT = 2000  # looks
_ENDS = (5, 95)  # percentiles: nine looks of ten lie between


@dataclass(frozen=True)
class Speed:
    """The reference kernel's ms: usual, now, and the ends that nine looks of ten lie between; ``looks`` there were.

    ``not_kept`` says why this look is not in the history.
    """

    usual_ms: float
    now_ms: float
    fast_ms: float
    slow_ms: float
    looks: int
    not_kept: str = ""

    @classmethod
    def from_history(cls, history_ms: np.ndarray, not_kept: str = "") -> "Speed":
        """Return the speed by all looks, the last one now; with few of them the processor may be as slow as a shared one."""
        usual, fast, slow = map(float, np.percentile(history_ms, (USUAL, *_ENDS)))
        few = len(history_ms) < _LEAST
        return cls(usual, float(history_ms[-1]), fast, max(slow, usual * _SHARED) if few else slow, len(history_ms), not_kept)

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

        below = np.hypot(np.log(predicted_ms / low_ms), np.log(predicted_ms / min(predicted_ms, ms(self.fast_ms))))
        above = np.hypot(np.log(high_ms / predicted_ms), np.log(max(predicted_ms, ms(self.slow_ms)) / predicted_ms))
        return {"now_ms": ms(self.now_ms), "here_low_ms": predicted_ms * float(np.exp(-below)),
                "here_high_ms": predicted_ms * float(np.exp(above))}


def look() -> Speed:
    """Run the reference kernel for a tenth of a second, add its median to the history of this machine, and return the speed."""
    kernel, begin, taken = ReferenceKernel(torch.device("cpu")), time.perf_counter(), []
    while (elapsed := time.perf_counter() - begin) < _SETTLE_S + _RUN_S:
        ms = kernel.ms()
        taken += [ms] if elapsed > _SETTLE_S else []
    now_ms = float(np.median(taken or [ms]))
    path = paths.DATA / "speed" / f"{machine.ids()['hardware_id']}_{torch.get_num_threads()}_threads.csv"
    table = csv_files.with_columns(path, ("utc", "kernel_ms"), "delete it: it is the history of this processor's speed")
    good = table[(table["kernel_ms"] > 0) & np.isfinite(table["kernel_ms"])] if len(table) else table
    history = [*good[["utc", "kernel_ms"]].tail(_KEPT).itertuples(index=False, name=None), (store.utc_now(), now_ms)]
    not_kept = ""
    try:
        files.replace(path, "".join(["utc,kernel_ms\n", *(f"{utc},{ms:.6g}\n" for utc, ms in history)]).encode())
    except InputError as error:  # a disk that is full or read-only keeps no answer back
        not_kept = str(error)
    return Speed.from_history(np.array([ms for _, ms in history]), not_kept)
