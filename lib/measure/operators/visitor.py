"""The worker of a sweep: a process that visits configurations on one device."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from lib import locks, store
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import disturbance, machine
from lib.measure.budget import Budget
from lib.measure.energy.trace import Energy
from lib.measure.networks import allocator
from lib.measure.operators import visit
from lib.measure.worker import Service, WorkerLostError
from lib.work.graph.ops import Ops
from lib.work.graph.spaces import Config


@contextmanager
def visits(device_id: str, threads: int, visit_ms: float,
           patience_s: float) -> Iterator[tuple[store.Facts, Callable]]:
    """Set this process up for visits to a device; yield its identity and the function of a request.

    A request is the name of a method of ``Bench`` and its arguments. Raises InputError for a device
    that is not here or is taken.
    """
    device = machine.device(device_id)
    machine.use(device)
    if threads:
        torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    threads, identity = torch.get_num_threads(), machine.identity()
    with locks.device(device_id):
        bench = visit.Bench(device, visit_ms)
        bench.kernel.settle()
        disturbance.wait_for_quiet(threads, patience_s, window_s=0.25, device=str(device))
        gc.disable()

        def respond(request: tuple[str, tuple]) -> store.Facts:
            gc.collect(0)
            name, arguments = request
            return getattr(bench, name)(*arguments)

        yield {**identity, "tf32": machine.tf32(device), "threads": threads, "pid": os.getpid(),
               "spare_cores": disturbance.spare_cores(threads), "card": machine.card(device),
               "free_bytes": machine.free_bytes(device), "meter": bench.meter.name}, respond


class Visitor:
    """Has configurations visited in a worker process; replaces one that dies or hangs."""

    def __init__(self, device: str, p: SweepParams):
        self._device, self._p, self._card = device, p, ""
        self._start()

    def _start(self) -> None:
        patience_s = min(self._p.patience_s, Budget(self._p.budget_s).patience_s)
        # a retained heap, or the outputs of large operators would fault in their pages
        self._service = Service(visits, self._device, self._p.threads, self._p.visit_ms, patience_s,
                                environment=allocator.RETAINED)

    def ready(self) -> store.Facts:
        """Wait until the process is set up and the machine quiet; return its identity.

        Raises what stopped it, and InputError where the device is another card than before.
        """
        identity = self._service.ready()
        if self._card not in ("", identity["card"]):  # the cards behind a lost one move up
            raise InputError(f"{self._device} is now {identity['card']} and was {self._card}: "
                             "a card is lost")
        self._card = identity["card"]
        return identity

    def _ask(self, name: str, arguments: tuple, timeout_s: float) -> store.Facts:
        """Return the worker's response; WorkerLostError where it is lost and another one is ready.

        Raises DeviceLostError where none can start.
        """
        try:
            return self._service.ask((name, arguments), timeout_s)
        except WorkerLostError as error:
            try:
                self._start()
                self.ready()
            except (InputError, RuntimeError) as lost:
                raise machine.DeviceLostError(f"{error}; then {lost}") from None
            raise

    def visit(self, config: Config, ops: Ops) -> store.Facts:
        """Return the row of ``repeats`` of one visit, which failed where the worker is lost."""
        begin = time.monotonic()
        try:
            return self._ask("visit", (config, ops), self._p.timeout_s)
        except WorkerLostError as error:
            return {**visit.NOTHING, "visit_s": time.monotonic() - begin, "reason": str(error)}

    def energy(self, config: Config, ops: Ops, seconds: float) -> store.Facts:
        """Return the row of ``energies`` of a loop of so many seconds, as ``visit`` does."""
        begin = time.monotonic()
        try:
            return self._ask("energy", (config, ops, seconds), self._p.timeout_s + seconds)
        except WorkerLostError as error:
            return {"energy_j": np.nan, "calls": 0, "loop_s": time.monotonic() - begin,
                    **Energy(0.0, reason=str(error)).columns}

    def shut_down(self) -> None:
        """End the process."""
        self._service.shut_down()
