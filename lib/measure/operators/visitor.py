"""The worker of a sweep: a process that visits configurations on one device, and its replacement when it dies or hangs."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lib import locks
from lib.config.notebooks import SweepParams
from lib.errors import InputError
from lib.measure import load, machine
from lib.measure.budget import Budget
from lib.measure.energy.trace import Energy
from lib.measure.gpus.watch import GpuUse
from lib.measure.networks import allocator
from lib.measure.operators import visit
from lib.measure.reference_kernel import ReferenceKernel
from lib.measure.worker import Service, WorkerLostError
from lib.work.graph.ops import Op
from lib.work.graph.spaces import Config

_DEATHS = 2  # of the worker at one configuration, before that counts as failed


@contextmanager
def _visits(device_id: str, threads: int, visit_ms: float, patience_s: float,
            card: str) -> Iterator[tuple[dict[str, Any], Callable]]:
    """Set this process up for visits to a device; give its identity, and the function of a request.

    A request is a configuration, its operators, and for how many seconds to loop it for its energy (0: visit it for its time).
    ``card`` is the UUID of the GPU that it must be (empty: any).

    Raises InputError for a device that is not here or is taken, and for another card under its name.
    """
    device = machine.device(device_id)
    machine.use(device)
    if card and card != machine.card(device):  # the cards behind one that is lost move up
        raise InputError(f"{device_id} is now {machine.card(device)} and was {card}: a card is lost")
    if threads:
        torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    identity = {**machine.identity(), "tf32": machine.tf32(device)}
    with locks.device(device_id):
        kernel = ReferenceKernel() if device.type == "cpu" else None
        if kernel:
            kernel.settle()
        load.wait_for_quiet(torch.get_num_threads(), patience_s, window_s=0.25, device=str(device))
        tools, begin = visit.Tools(device), time.perf_counter()
        gc.disable()

        def respond(request: tuple[Config, tuple[Op, ...], float]) -> dict[str, Any]:
            gc.collect(0)
            config, ops, energy_s = request
            if energy_s:
                return visit.energy(config, ops, device, energy_s, tools)
            at_s = time.perf_counter() - begin
            result = _undisturbed(config, ops, device, visit_ms, tools, kernel)
            return {**result, "at_s": at_s, "visit_s": time.perf_counter() - begin - at_s}

        threads = torch.get_num_threads()
        yield {**identity, "threads": threads, "spare_cores": load.spare_cores(threads), "pid": os.getpid(),
               "card": machine.card(device), "free_bytes": machine.free_bytes(device), "meter": tools.meter.name}, respond


def _undisturbed(config: Config, ops: tuple[Op, ...], device: torch.device, visit_ms: float, tools: visit.Tools,
                 kernel: ReferenceKernel | None) -> dict[str, Any]:
    """Wait a moment for the processor to be as fast as usual, then visit; the reference kernel tells whether it stayed so."""
    if kernel is None:
        return {**visit.visit(config, ops, device, visit_ms, tools), "yardstick_ms": np.nan}
    before_ms = kernel.wait()
    result = visit.visit(config, ops, device, visit_ms, tools)
    return {**result, "yardstick_ms": max(before_ms, kernel.after())}


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

    def ready(self) -> dict[str, Any]:
        """Wait until the process is set up and the machine quiet; return its identity, or raise what stopped it."""
        identity = self._service.ready()
        self._card = identity["card"]
        return identity

    def visit(self, config: Config, ops: tuple[Op, ...]) -> dict[str, Any]:
        """Have one configuration measured; where the worker hangs, or dies twice, the result says so with status failed.

        Raises DeviceLostError where the device cannot be used any more.
        """
        begin = time.monotonic()
        result, reason = self._answer((config, ops, 0.0), self._p.timeout_s)
        if result:
            return result
        nothing = dict.fromkeys(("latency_ms", "spread_ms", "yardstick_ms"), float("nan"))
        return {**nothing, "n": 0, "calls": 0, "at_s": 0.0, "visit_s": time.monotonic() - begin, "other_cores": 0.0,
                "stolen_cores": 0.0, "status": "failed", "reason": reason, **GpuUse().columns}

    def energy(self, config: Config, ops: tuple[Op, ...], seconds: float) -> dict[str, Any]:
        """Have one configuration looped for its energy; where the worker hangs, or dies twice, the result says so."""
        begin = time.monotonic()
        result, reason = self._answer((config, ops, seconds), self._p.timeout_s + seconds)
        lost = {"energy_j": float("nan"), "calls": 0, "loop_s": time.monotonic() - begin, **Energy(0.0, reason=reason).columns}
        return result or lost

    def _answer(self, request: tuple[Config, tuple[Op, ...], float], timeout_s: float) -> tuple[dict[str, Any], str]:
        """Return the worker's response; where it hangs, or dies again and again, nothing and why."""
        reason = ""
        for _ in range(_DEATHS):
            try:
                return self._service.ask(request, timeout_s), ""
            except WorkerLostError as error:
                reason, hung = str(error), error.hung
            try:
                self._start()
                self.ready()
            except (InputError, RuntimeError) as error:
                raise machine.DeviceLostError(f"{reason}; then {error}") from None
            if hung:
                break
        return {}, reason

    def shut_down(self) -> None:
        """End the process."""
        self._service.shut_down()
