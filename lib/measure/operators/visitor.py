"""The worker of a sweep: a process that visits configurations on one device, and its replacement when it dies or hangs."""

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

_DEATHS = 2  # of the worker at one configuration, before that counts as failed


@contextmanager
def _visits(device_id: str, threads: int, visit_ms: float, patience_s: float,
            card: str) -> Iterator[tuple[store.Facts, Callable]]:
    """Set this process up for visits to a device; give its identity, and the function of a request.

    A request is the name of a method of ``Bench`` and its arguments. ``card`` is the UUID that the GPU must have (empty: any).

    Raises InputError for a device that is not here or is taken, and for another card under its name.
    """
    device = machine.device(device_id)
    machine.use(device)
    here = machine.card(device)
    if card not in ("", here):  # the cards behind one that is lost move up
        raise InputError(f"{device_id} is now {here} and was {card}: a card is lost")
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

        yield {**identity, "tf32": machine.tf32(device), "threads": threads, "spare_cores": disturbance.spare_cores(threads),
               "pid": os.getpid(), "card": here, "free_bytes": machine.free_bytes(device),
               "meter": bench.meter.name}, respond


class Visitor:
    """Has configurations visited in a worker process, which is started again after it died or hung."""

    def __init__(self, device: str, p: SweepParams):
        self._device, self._p, self._card = device, p, ""
        self._start()

    def _start(self) -> None:
        patience_s = min(self._p.patience_s, Budget(self._p.budget_s).patience_s)
        # with a retained heap: else the outputs of large operators would fault their pages in at each call
        self._service = Service(_visits, self._device, self._p.threads, self._p.visit_ms, patience_s, self._card,
                                environment=allocator.RETAINED)

    def ready(self) -> store.Facts:
        """Wait until the process is set up and the machine quiet; return its identity, or raise what stopped it."""
        identity = self._service.ready()
        self._card = identity["card"]
        return identity

    def visit(self, config: Config, ops: Ops) -> store.Facts:
        """Have one configuration measured; where the worker hangs, or dies twice, the result says so with status failed.

        Raises DeviceLostError where the device cannot be used any more.
        """
        return self._answer("visit", (config, ops), lambda reason, seconds: {
            **visit.NOTHING, "visit_s": seconds, "reason": reason})

    def energy(self, config: Config, ops: Ops, seconds: float) -> store.Facts:
        """Have one configuration looped for its energy; where the worker hangs, or dies twice, the result says so."""
        return self._answer("energy", (config, ops, seconds), lambda reason, spent_s: {
            "energy_j": np.nan, "calls": 0, "loop_s": spent_s, **Energy(0.0, reason=reason).columns}, seconds)

    def _answer(self, name: str, arguments: tuple, lost: Callable[[str, float], store.Facts],
                seconds: float = 0.0) -> store.Facts:
        """Return the worker's response, or, where it hangs or dies again and again, ``lost`` of the reason and the time."""
        begin, reason = time.monotonic(), ""
        for _ in range(_DEATHS):
            try:
                return self._service.ask((name, arguments), self._p.timeout_s + seconds)
            except WorkerLostError as error:
                reason, hung = str(error), error.hung
            try:
                self._start()
                self.ready()
            except (InputError, RuntimeError) as error:
                raise machine.DeviceLostError(f"{reason}; then {error}") from None
            if hung:
                break
        return lost(reason, time.monotonic() - begin)

    def shut_down(self) -> None:
        """End the process."""
        self._service.shut_down()
