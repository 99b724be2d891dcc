"""Workers on a Ray cluster of several nodes: one actor per slot. Ray is the extra ``[cluster]``.

Every node has this project at the same path, with the same environment and folders of outputs. Ray
places and watches actors; which of them share a node's cores and cards is decided here.
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lib import locks, paths
from lib.errors import InputError
from lib.schedule.loop import Back, Lost
from lib.schedule.run.processes import THREADS, WARM_UP, TaskEnd, call, task_function
from lib.schedule.run.slots import Slot, default_slots

_CONNECT_S, _JOIN_S, _LOOK_S = 5.0, 60.0, 2.0
_JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class RayWorker:
    """Calls tasks, in an actor on the node of its slots."""

    def __init__(self, cards: str, warm_up: str):
        if cards:
            os.environ[locks.MASK] = cards  # Ray hides cards that it did not allocate
        if warm_up:
            task_function(warm_up)()

    def call(self, *request: Any) -> TaskEnd:
        """Call a task; return its end."""
        return call(*request)


@dataclass(eq=False)
class _Actor:
    """An actor, and the attempt that it is at with its result to come; 0: none."""

    handle: Any
    attempt: int = 0
    result: Any = None


class RayWorkers:
    """One actor per slot of every node; nodes die and join. Types are of a node: ``cpu@host``."""

    def __init__(self, ray: Any, count: int = 0, warm_up: str = WARM_UP):
        """Start actors on ``count`` CPU slots per node (0: ``default_slots``), and on all GPUs."""
        self._ray, self._count, self._warm_up = ray, count, warm_up
        self.slots: list[Slot] = []
        self._actors: dict[tuple[int, ...], _Actor] = {}
        self._events: list[TaskEnd | Lost | Back] = []
        self._names: Counter[str] = Counter()  # of hosts: further nodes of one are numbered
        self._nodes: set[str] = set()  # that are alive
        self._look_at_nodes()
        if not self.slots:
            raise InputError("the cluster has neither a CPU nor a GPU")

    def _look_at_nodes(self) -> None:
        """Add the slots of nodes that joined; lose those of nodes that died."""
        self._look_s = time.monotonic() + _LOOK_S
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for devices, actor in list(self._actors.items()):
            if self.slots[devices[0]].node not in nodes:
                self._end_actor(devices)
                if actor.attempt:
                    self._events.append(TaskEnd(actor.attempt, "lost", reason="its node is gone"))
                if len(devices) == 1:
                    self._events.append(Lost(devices[0]))
        for node_id in [node_id for node_id in nodes if node_id not in self._nodes]:
            for slot in self._slots_of(nodes[node_id]):
                self.slots.append(slot)
                self._start_actor((len(self.slots) - 1,))
                self._events.append(Back(len(self.slots) - 1))
        self._nodes = set(nodes)

    def _slots_of(self, node: dict[str, Any]) -> list[Slot]:
        """Return the slots of a node as Ray counts its resources."""
        resources, host, node_id = node["Resources"], node["NodeName"], node["NodeID"]
        cpus = int(resources.get("CPU", 0))
        if self._count > cpus > 0:
            raise InputError(f"{self._count} slots a node, but {host} has {cpus} CPUs: it must be "
                             f"1 to {cpus}")
        self._names[host] += 1
        name = host if self._names[host] == 1 else f"{host}#{self._names[host]}"
        count = (self._count or default_slots(cpus)) if cpus else 0
        memory_mb = resources.get("memory", float("nan")) / 1e6
        slots = [Slot(f"cpu@{name}[{number}]", f"cpu@{name}", core_count=cpus // count,
                      threads=cpus // count, memory_mb=memory_mb / count, node=node_id)
                 for number in range(count)]
        models = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
        card = f"cuda:{models[0]}@{name}" if models else f"cuda@{name}"
        return slots + [Slot(f"{card}[{number}]", card, card=str(number), node=node_id)
                        for number in range(int(resources.get("GPU", 0)))]

    def _start_actor(self, devices: tuple[int, ...]) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        slots = [self.slots[device] for device in devices]
        path = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        variables = {"PYTHONPATH": path, "LIB_OUTPUT": str(paths.OUTPUT),
                     **dict.fromkeys(THREADS, str(slots[0].threads))}
        actor = self._ray.remote(RayWorker).options(
            num_cpus=0, num_gpus=0, runtime_env={"env_vars": variables},
            scheduling_strategy=NodeAffinitySchedulingStrategy(slots[0].node, soft=False))
        cards = ",".join(slot.card for slot in slots if slot.card)
        handle = actor.remote(cards, self._warm_up if len(slots) == 1 else "")
        self._actors[devices] = _Actor(handle)
        return self._actors[devices]

    def start(self, attempt: int, task: str, arguments: dict[str, Any],
              devices: tuple[int, ...]) -> None:
        """Run a task on slots of one node; its TaskEnd comes from ``poll``."""
        actor = self._actors.get(devices) or self._start_actor(devices)
        slots = [self.slots[device] for device in devices]
        names = [f"cuda:{number}" if slot.card else "cpu" for number, slot in enumerate(slots)]
        actor.attempt = attempt
        actor.result = actor.handle.call.remote(task, arguments, names, slots[0].threads)

    def stop(self, attempt: int) -> None:
        """Stop an attempt by the end of its actor."""
        for devices, actor in list(self._actors.items()):
            if actor.attempt == attempt:
                self._replace(devices)

    def poll(self, timeout_s: float) -> list[TaskEnd | Lost | Back]:
        """Wait until something happens, at most ``timeout_s``; InputError when no node is left."""
        until = time.monotonic() + timeout_s
        while True:
            if time.monotonic() >= self._look_s:
                self._look_at_nodes()
            if not self._actors:
                raise InputError("no node of the cluster is left; the same call again resumes")
            patience_s = max(0.0, min(until, self._look_s) - time.monotonic())
            if self._events:
                patience_s = 0.0
            busy = {actor.result: devices for devices, actor in self._actors.items()
                    if actor.attempt}
            if busy:
                for result in self._ray.wait(list(busy), timeout=patience_s)[0]:
                    self._hear(busy[result])
            else:
                time.sleep(patience_s)
            if self._events or time.monotonic() >= until:
                events, self._events = self._events, []
                return events

    def _hear(self, devices: tuple[int, ...]) -> None:
        actor = self._actors[devices]
        try:
            end = self._ray.get(actor.result)._replace(attempt=actor.attempt)
        except Exception as error:  # of many kinds, when an actor is gone
            self._look_at_nodes()
            if devices not in self._actors:  # its node is gone, too
                return
            end = TaskEnd(actor.attempt, "failed", reason=_reason(error))
            self._replace(devices)
        self._events.append(end)
        actor.attempt = 0
        if len(devices) > 1 and devices in self._actors:
            self._end_actor(devices)

    def _end_actor(self, devices: tuple[int, ...]) -> None:
        self._ray.kill(self._actors.pop(devices).handle)

    def _replace(self, devices: tuple[int, ...]) -> None:
        self._end_actor(devices)
        if len(devices) == 1:
            self._start_actor(devices)

    def close(self) -> None:
        """End all actors."""
        for devices in list(self._actors):
            self._end_actor(devices)


def _reason(error: Exception) -> str:
    """Return in one line why an actor ended, from Ray's paragraphs."""
    text = " ".join(str(error).split())
    detail = text.partition("Worker exit detail: ")[2] or text
    return f"the worker was killed, or ran out of memory? Ray says: {detail.partition('. ')[0]}"


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Join a Ray cluster at ``HOST:PORT`` of its head, or ``auto``: that of this machine.

    Raises InputError in one line where that fails, or Ray is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install -e '.[cluster]'") from None
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of many kinds, and of many lines
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise InputError(f"the Ray cluster at {address} cannot be joined: {why}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address at which no cluster can be joined, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address != "auto":
        if not host or not port.isdecimal() or "/" in host:
            raise InputError(f"{address!r} is no address of a Ray cluster: it is HOST:PORT of its "
                             "head, such as 10.0.0.1:6379, or auto")
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"no Ray cluster answers at {address} ({error}); ray start --head "
                             f"--port={port} starts one there") from None
    try:
        joined = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True,
                                text=True, timeout=_JOIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"what answers at {address} is no Ray cluster that can be joined from "
                         f"here: it was not joined within {_JOIN_S:g} s") from None
    if joined.returncode:
        why = (joined.stderr.strip().splitlines() or ["no reason given"])[-1]
        if "AuthToken" in joined.stderr:
            why = ("it wants its token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH unless it "
                   "lies in ~/.ray/auth_token")
        raise InputError(f"the Ray cluster at {address} cannot be joined: {why}")
