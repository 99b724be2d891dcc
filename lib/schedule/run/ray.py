"""Workers on a Ray cluster of several nodes: one actor per slot. Ray is the extra ``[cluster]``.

Every node has this project at the same path, with the same environment and folders of outputs. Ray
places and watches actors, and gives each its cores or its card.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from lib import locks, paths
from lib.errors import InputError, one_line
from lib.schedule.loop import Back, Lost
from lib.schedule.run.processes import THREADS, WARM_UP, TaskEnd, call_on, task_function
from lib.schedule.run.slots import Slot, default_slots

_LOOK_S = 2.0  # between looks at the nodes
_GONE = "its node is gone"


class RayWorker:
    """Calls tasks, in an actor on the node of its slot."""

    def __init__(self, warm_up: str):
        if warm_up:
            task_function(warm_up)()

    def card(self) -> str:
        """Return the card that Ray gave this actor."""
        return os.environ[locks.MASK]

    def call(self, slots: list[Slot], task: str, arguments: dict[str, Any],
             *cards: str) -> TaskEnd:
        """Call a task on some slots, with the cards of their actors; return its end."""
        slots = [replace(slot, card=card) for slot, card in zip(slots, cards, strict=True)]
        return call_on(slots, task, arguments)


@dataclass(eq=False)
class _Actor:
    """An actor, its card to come, and the attempt that it is at (0: none) with its result."""

    handle: Any
    card: Any
    attempt: int = 0
    result: Any = None


class RayWorkers:
    """One actor per slot of every node; nodes die and join. Types are of a node: ``cpu@host``."""

    def __init__(self, ray: Any, count: int = 0, warm_up: str = WARM_UP):
        """Start actors on ``count`` CPU slots per node (0: ``default_slots``), and on all GPUs."""
        self._ray, self._count, self._warm_up = ray, count, warm_up
        self.slots: list[Slot] = []
        self._actors: dict[int, _Actor] = {}  # by the numbers of their slots
        self._events: list[TaskEnd | Lost | Back] = []
        self._nodes: set[str] = set()  # that are alive
        self._look_at_nodes()
        if not self.slots:
            raise InputError("the cluster has neither a CPU nor a GPU")

    def _look_at_nodes(self) -> None:
        """Add the slots of nodes that joined; lose those of nodes that died."""
        self._look_s = time.monotonic() + _LOOK_S
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for device, actor in list(self._actors.items()):
            if self.slots[device].node not in nodes:
                del self._actors[device]
                if actor.attempt:
                    self._events.append(TaskEnd(actor.attempt, "lost", reason=_GONE))
                self._events.append(Lost(device))
        for node_id in nodes.keys() - self._nodes:
            cpus = int(nodes[node_id]["Resources"].get("CPU", 0))
            count = min(self._count, cpus) if self._nodes else self._count  # of one that joins
            for slot in slots_of(nodes[node_id], count):
                self.slots.append(slot)
                self._start_actor(len(self.slots) - 1)
                self._events.append(Back(len(self.slots) - 1))
        self._nodes = set(nodes)

    def _start_actor(self, device: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        slot = self.slots[device]
        code = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        variables = {"PYTHONPATH": code, "LIB_OUTPUT": str(paths.OUTPUT),
                     **dict.fromkeys(THREADS, str(slot.threads))}
        options = self._ray.remote(RayWorker).options(
            num_cpus=0 if slot.card else slot.core_count, num_gpus=1 if slot.card else 0,
            runtime_env={"env_vars": variables},
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False))
        handle = options.remote(self._warm_up)
        self._actors[device] = _Actor(handle, handle.card.remote() if slot.card else "")

    def start(self, attempt: int, task: str, arguments: dict[str, Any],
              devices: tuple[int, ...]) -> None:
        """Run a task on slots of one node; its TaskEnd comes from ``poll``: lost without the node."""
        if devices[0] not in self._actors:
            self._events += [TaskEnd(attempt, "lost", reason=_GONE), *map(Lost, devices)]
            return
        actor = self._actors[devices[0]]
        slots = [self.slots[device] for device in devices]
        cards = [self._actors[device].card for device in devices]
        actor.attempt = attempt
        actor.result = actor.handle.call.remote(slots, task, arguments, *cards)

    def stop(self, attempt: int) -> None:
        """Stop an attempt by the end of its actor."""
        for device, actor in list(self._actors.items()):
            if actor.attempt == attempt:
                self._replace(device)

    def poll(self, timeout_s: float) -> list[TaskEnd | Lost | Back]:
        """Return what happened, after at most ``timeout_s``; InputError when no node is left."""
        if time.monotonic() >= self._look_s:
            self._look_at_nodes()
        if not self._actors:
            raise InputError("no node of the cluster is left; the same call again resumes")
        patience_s = 0.0 if self._events else min(timeout_s, _LOOK_S)
        busy = {actor.result: device for device, actor in self._actors.items() if actor.attempt}
        if busy:
            for result in self._ray.wait(list(busy), timeout=patience_s)[0]:
                self._hear(busy[result])
        else:
            time.sleep(patience_s)
        events, self._events = self._events, []
        return events

    def _hear(self, device: int) -> None:
        actor = self._actors[device]
        try:
            end = self._ray.get(actor.result)._replace(attempt=actor.attempt)
        except Exception as error:  # of many kinds, when an actor is gone
            self._look_at_nodes()
            if device not in self._actors:  # its node is gone, too
                return
            end = TaskEnd(actor.attempt, "failed", reason=one_line(error))
            self._replace(device)
        self._events.append(end)
        actor.attempt = 0

    def _replace(self, device: int) -> None:
        self._ray.kill(self._actors[device].handle)
        self._start_actor(device)

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor.handle)


def slots_of(node: dict[str, Any], count: int = 0) -> list[Slot]:
    """Return the slots of a node as Ray counts its resources (``ray.nodes()``)."""
    resources, host, node_id = node["Resources"], node["NodeName"], node["NodeID"]
    cpus = int(resources.get("CPU", 0))
    if count > cpus > 0:
        raise InputError(f"{count} slots a node, but {host} has {cpus} CPUs: it must be 1 to {cpus}")
    count = (count or default_slots(cpus)) if cpus else 0
    memory_mb = resources.get("memory", float("nan")) / 1e6
    slots = [Slot(f"cpu@{host}[{number}]", f"cpu@{host}", core_count=cpus // count,
                  threads=cpus // count, memory_mb=memory_mb / count, node=node_id)
             for number in range(count)]
    models = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    card = f"cuda:{models[0]}@{host}" if models else f"cuda@{host}"
    return slots + [Slot(f"{card}[{number}]", card, card=str(number), node=node_id)  # Ray says which
                    for number in range(int(resources.get("GPU", 0)))]


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Join a Ray cluster at ``HOST:PORT`` of its head, or ``auto``: that of this machine.

    Raises InputError in one line where that fails, or Ray is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install -e '.[cluster]'") from None
    if address != "auto":
        try:  # Ray waits for minutes
            socket.create_connection(address.rpartition(":")[::2], timeout=5.0).close()
        except OSError as error:
            raise InputError(f"no Ray cluster answers at {address} ({error}): its address is "
                             "HOST:PORT of its head, or auto for that of this machine") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of many kinds, and of many lines
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise InputError(f"the Ray cluster at {address} cannot be joined: {why}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
