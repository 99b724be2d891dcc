"""What sampling power costs W1's training step: interleaved pairs with and without, and CPU time of the sampling thread."""

import hashlib
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import paired, training_epoch
from lib.measure.energy import meters
from lib.measure.energy.windows import Recorder

PAIRS, BATCHES = 25, 10
TOY = {"PAIRS": 2, "BATCHES": 1}
_DRIVER_S = 0.0004  # of a power and an energy reading by NVML: some thousands of power readings a second were published


def _driver() -> meters.Meter:
    """Return a meter that costs as much as NVML: its driver works on the processor and holds no lock of Python's."""
    block, begin = bytes(1_000_000), time.thread_time()
    hashlib.sha256(block)
    work = bytes(int(len(block) * _DRIVER_S / (time.thread_time() - begin)))
    return meters.Meter("like NVML (0.4 ms of the processor a sample)", meters.DRIVER_PERIOD_S,
                        lambda: float(bool(hashlib.sha256(work))))


class Clocked(meters.Meter):
    """A meter of which the CPU time of the thread that reads it is known."""

    def __init__(self, meter):
        super().__init__(meter.name, meter.period_s, meter.power_w, self._clocked)
        self._read, self.samples, self.cpu_s = meter.counter_j, 0, 0.0

    def _clocked(self) -> float:
        """Return the meter's counter, and look at the clock of the sampling thread."""
        value = self._read()
        if threading.current_thread() is not threading.main_thread():
            self.samples, self.cpu_s = self.samples + 1, time.thread_time()
        return value


def _files(folder: Path) -> list:
    """Return meters of files as the kernel has them, in a folder."""
    zone = folder / "intel-rapl:0"
    zone.mkdir()
    for name, content in {"name": "package-0\n", "energy_uj": "1000", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(content)
    return [meters.rapl(folder)]


def main() -> None:
    """Print, for each meter, the ratio of the two with its interval, and the share of the sampling thread."""
    epoch = training_epoch.prepare(BATCHES)
    shares = []

    def sampled(meter) -> float:
        clocked = Clocked(meter)
        with Recorder(clocked):
            seconds = epoch()
            shares.append((clocked.cpu_s / seconds, clocked.samples))
        return seconds

    for _ in range(3):
        epoch()
    with tempfile.TemporaryDirectory() as folder:
        for meter in (*_files(Path(folder)), _driver()):
            shares.clear()
            result = paired.compare(lambda meter=meter: sampled(meter), epoch, PAIRS)
            cpu = sorted(share for share, _ in shares)[len(shares) // 2]
            print(f"   {meter.name}: sampled / bare on {epoch.device} {result.ratio:.4f} [{result.low:.4f}, {result.high:.4f}] "
                  f"at 95 %, {result.pairs} pairs of {BATCHES} steps; its thread took {cpu:.2%} of that time on a core "
                  f"({sum(samples for _, samples in shares) / len(shares):.0f} samples each)", flush=True)
    control = paired.compare(epoch, epoch, PAIRS)
    print(f"   bare / bare, as a control: {control.ratio:.4f} [{control.low:.4f}, {control.high:.4f}]")
