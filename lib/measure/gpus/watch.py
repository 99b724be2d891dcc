"""Use of a GPU during a measurement: its other users, its clock, its throttling."""

from collections.abc import Set
from dataclasses import dataclass

from lib.errors import InputError
from lib.measure.gpus.card import Card
from lib.measure.statistics import NOISY, STABLE, crowd_verdict, worst


@dataclass(frozen=True)
class GpuUse:
    """What happened on a GPU beside a measurement.

    ``others`` is the share of its time that strangers used, None where that is not known, and ``unknown`` then says why.
    ``clock_mhz`` is that of its multiprocessors, None where not told; ``throttled`` says by what, empty where by nothing.
    """

    others: float | None = None
    clock_mhz: float | None = None
    throttled: str = ""
    unknown: str = ""

    @property
    def columns(self) -> dict[str, float | str | None]:
        """Return it as columns of ``repeats``."""
        return {"gpu_others": self.others, "gpu_mhz": self.clock_mhz, "gpu_throttled": self.throttled,
                "gpu_unknown": self.unknown}

    def verdict(self) -> str:
        """Return the verdict on what was measured meanwhile; what is not known to be quiet is noisy."""
        crowd = NOISY if self.others is None else crowd_verdict(self.others)
        return worst(crowd, NOISY if self.throttled else STABLE)

    def words(self) -> str:
        """Say what others used of the GPU, or why that is not known, and what throttled it."""
        used = self.unknown if self.others is None else f"others used {self.others:.0%} of the GPU"
        return f"{used}; the GPU was throttled: {self.throttled}" if self.throttled else used


class GpuWatch:
    """Watches one GPU, on which this process has memory of its own; ``pids`` are of processes that are no strangers."""

    def __init__(self, number: int, pids: Set[int]):
        self._pids, self._card, self._unknown = pids, None, ""
        try:
            self._card = Card(number)
        except InputError as error:
            self._unknown = str(error)
        self.begin()

    def begin(self) -> None:
        """Begin to watch anew."""
        self._throttled = self._card.throttled if self._card else ""

    def reading(self) -> GpuUse:
        """Return what happened since ``begin``.

        In a container NVML lists the host's process ids, which hides ours: the busiest process is then assumed to be ours.
        """
        if not self._card:
            return GpuUse(unknown=self._unknown)
        clock_mhz, throttled = self._card.clock_mhz, self._card.throttled or self._throttled
        running = self._card.processes()
        if running is None:
            return GpuUse(None, clock_mhz, throttled, "the driver does not tell who uses the GPU")
        strangers = {pid: share for pid, share in running.items() if pid not in self._pids}
        if strangers and len(strangers) == len(running):
            del strangers[max(strangers, key=lambda pid: strangers[pid] or 0.0)]
        for pid, share in strangers.items():
            if share is None:
                return GpuUse(None, clock_mhz, throttled, f"process {pid} is on the GPU too, its share is not told")
        return GpuUse(min(1.0, sum(strangers.values())), clock_mhz, throttled)
