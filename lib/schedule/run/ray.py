"""Workers on a Ray cluster of one or many nodes: one actor per slot. Ray is the extra ``[cluster]``.

Every node has this project at the same path, with the same environment and folders of outputs. Ray
places and watches actors; which of them share a node's cores and cards is decided here.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lib import files, locks, paths
from lib.errors import InputError
from lib.measure.worker import allowed_cores
from lib.schedule.loop import Back, Lost
from lib.schedule.run.processes import THREADS, WARM_UP, TaskEnd, call, task_function
from lib.schedule.run.slots import Slot, default_slots

_CONNECT_S, _JOIN_S, _LOOK_S = 5.0, 60.0, 2.0
_STORE_BYTES = 100 * 2**20  # jobs pass nothing through Ray's object store
_JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
_IN_FOLDER_BYTES = len("/ray-abcdefgh/r/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.99")


class RayWorker:
    """Calls tasks, in an actor on the node of its slots."""

    def __init__(self, cards: str, warm_up: str):
        if cards:
            os.environ[locks.MASK] = cards  # Ray hides cards that it did not allocate
        if warm_up:
            task_function(warm_up)()

    def ready(self) -> None:
        """Return once the actor is there."""

    def call(self, attempt: int, *request: Any) -> TaskEnd:
        """Call a task; return its end."""
        return call(*request)._replace(attempt=attempt)


@dataclass(eq=False)
class _Actor:
    """An actor, and what it is at: getting ready (attempt 0), or an attempt."""

    handle: Any
    pending: Any  # the result that is waited for; None: idle
    attempt: int = 0


class RayWorkers:
    """One actor per slot of every node; nodes may die and join. Types are of a node: ``cpu@host``."""

    def __init__(self, ray: Any, count: int = 0, warm_up: str = WARM_UP):
        """Start actors on ``count`` CPU slots per node (0: ``default_slots``), and on all GPUs."""
        self._ray, self._count, self._warm_up = ray, count, warm_up
        self.slots: list[Slot] = []
        self.notes: list[str] = []
        self._actors: dict[tuple[int, ...], _Actor] = {}
        self._events: list[TaskEnd | Lost | Back] = []
        self._names: Counter[str] = Counter()  # of hosts: further nodes of one are numbered
        self._nodes: set[str] = set()  # that are alive
        self._look_s = 0.0
        self._look_at_nodes()
        if not self.slots:
            raise InputError("the cluster has neither a CPU nor a GPU")

    @property
    def starting(self) -> list[tuple[int, ...]]:
        """Slots whose actor is not ready yet."""
        return [devices for devices, actor in self._actors.items() if actor.pending and not actor.attempt]

    def _look_at_nodes(self) -> None:
        """Add the slots of nodes that joined; lose those of nodes that died."""
        self._look_s = time.monotonic() + _LOOK_S
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for devices, actor in list(self._actors.items()):
            if self.slots[devices[0]].node not in nodes:
                self._drop(devices, actor, "its node is gone", "lost")
        for node_id in [node_id for node_id in nodes if node_id not in self._nodes]:
            for slot in self._slots_of(nodes[node_id]):
                self.slots.append(slot)
                self._start_actor((len(self.slots) - 1,))
        self._nodes = set(nodes)

    def _slots_of(self, node: dict[str, Any]) -> list[Slot]:
        """Return the slots of a node as Ray counts its resources."""
        resources, host = node["Resources"], node["NodeName"]
        cpus, node_id = int(resources.get("CPU", 0)), node["NodeID"]
        if self._count > cpus > 0:
            raise InputError(f"{self._count} slots a node, but {host} has {cpus} CPUs: it must be 1 to {cpus}")
        self._names[host] += 1
        name = host if self._names[host] == 1 else f"{host}#{self._names[host]}"
        count = (self._count or default_slots(cpus)) if cpus else 0
        slots = [Slot(f"cpu@{name}[{number}]", f"cpu@{name}", core_count=cpus // count, node=node_id,
                      threads=cpus // count, memory_mb=resources.get("memory", float("nan")) / 1e6 / count)
                 for number in range(count)]
        kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
        card = f"cuda:{kinds[0]}@{name}" if kinds else f"cuda@{name}"
        return slots + [Slot(f"{card}[{number}]", card, card=str(number), node=node_id)
                        for number in range(int(resources.get("GPU", 0)))]

    def _start_actor(self, devices: tuple[int, ...]) -> _Actor:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        slots = [self.slots[device] for device in devices]
        path = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        variables = {"PYTHONPATH": path, "LIB_OUTPUT": str(paths.OUTPUT),
                     **dict.fromkeys(THREADS, str(slots[0].threads))}
        here = NodeAffinitySchedulingStrategy(slots[0].node, soft=False)
        handle = self._ray.remote(RayWorker).options(
            num_cpus=0, num_gpus=0, scheduling_strategy=here,
            runtime_env={"env_vars": variables}).remote(
                ",".join(slot.card for slot in slots), self._warm_up if len(slots) == 1 else "")
        self._actors[devices] = _Actor(handle, handle.ready.remote())
        return self._actors[devices]

    def start(self, attempt: int, task: str, arguments: dict[str, Any], devices: tuple[int, ...]) -> None:
        """Run a task on slots of one node; its TaskEnd comes from ``poll``."""
        actor = self._actors.get(devices) or self._start_actor(devices)
        slots = [self.slots[device] for device in devices]
        names = [f"cuda:{number}" if slot.card else "cpu" for number, slot in enumerate(slots)]
        actor.attempt = attempt
        actor.pending = actor.handle.call.remote(attempt, task, arguments, names, slots[0].threads)

    def stop(self, attempt: int) -> None:
        """Stop an attempt by the end of its actor."""
        for devices, actor in list(self._actors.items()):
            if actor.attempt == attempt:
                actor.attempt = 0
                self._drop(devices, actor, "", "lost")

    def poll(self, timeout_s: float) -> list[TaskEnd | Lost | Back]:
        """Wait until something happens, at most ``timeout_s``; InputError when no node is left."""
        until = time.monotonic() + timeout_s
        while not self._events:
            if time.monotonic() >= self._look_s:
                self._look_at_nodes()
            left_s = min(until, self._look_s) - time.monotonic()
            pending = {actor.pending: devices for devices, actor in self._actors.items() if actor.pending}
            if pending:
                for result in self._ray.wait(list(pending), timeout=max(0.0, left_s))[0]:
                    self._hear(pending[result])
            else:
                time.sleep(max(0.0, left_s))
            if not self._actors:
                raise InputError(f"no node is left ({'; '.join(self.notes[-3:])}); the same call again resumes")
            if time.monotonic() >= until:
                break
        events, self._events = self._events, []
        return events

    def _hear(self, devices: tuple[int, ...]) -> None:
        actor = self._actors[devices]
        try:
            end = self._ray.get(actor.pending)
        except Exception as error:  # of many kinds, when an actor is gone
            self._look_at_nodes()
            if devices in self._actors:
                self._drop(devices, actor, _reason(error), "failed")
            return
        actor.pending, actor.attempt = None, 0
        if end is None:
            self._events.append(Back(devices[0]))
            return
        self._events.append(end)
        if len(devices) > 1:
            self._ray.kill(self._actors.pop(devices).handle)

    def _drop(self, devices: tuple[int, ...], actor: _Actor, reason: str, status: str) -> None:
        """End an actor, and start another one on its slot if the node is alive."""
        del self._actors[devices]
        self._ray.kill(actor.handle)
        if actor.attempt:
            self._events.append(TaskEnd(actor.attempt, status, reason=reason))
        if reason:
            self.notes.append(f"{self.slots[devices[0]].name}: {reason}")
        if len(devices) == 1:
            self._events.append(Lost(devices[0]))
            if reason != "its node is gone":
                self._start_actor(devices)

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor.handle)
        self._actors.clear()


def _reason(error: Exception) -> str:
    """Return in one line why an actor ended, from Ray's paragraphs."""
    text = " ".join(str(error).split())
    detail = text.partition("Worker exit detail: ")[2] or text
    return f"the worker was killed, or ran out of memory? Ray says: {detail.partition('. ')[0]}"


# ---------------------------------------------------------------------- the cluster


@contextmanager
def cluster(address: str = "") -> Iterator[Any]:
    """Join a Ray cluster (``HOST:PORT`` of its head, or ``auto``), or start one on this machine.

    One that is started here is closed to others: it listens on the loopback interface, and has a
    secret token. Raises InputError in one line where that fails, or Ray is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if not address:  # before the import, which reads them
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install -e '.[cluster]'") from None
    parent = files.short_folder(_IN_FOLDER_BYTES, os.environ.get("RAY_TMPDIR", ""), "RAY_TMPDIR")
    with tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True) as folder:
        options = {"address": address}
        if address:
            _check_address(address)
        else:
            options = {"address": "local", "_temp_dir": os.path.join(folder, "r"),
                       "num_cpus": len(allowed_cores()), "include_dashboard": False,
                       "object_store_memory": _STORE_BYTES,
                       "_system_config": {"worker_niceness": 0}}  # by default Ray yields to all else
        try:
            ray.init(**options, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # of many kinds, and of many lines
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(f"Ray does not start, or cannot be joined at {address or 'this machine'}: "
                             f"{why}") from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address at which no cluster can be joined, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address != "auto":
        if not host or not port.isdecimal() or "/" in host:
            raise InputError(f"{address!r} is no address of a Ray cluster: it is HOST:PORT of its head, "
                             "such as 10.0.0.1:6379, or auto")
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"no Ray cluster answers at {address} ({error}); ray start --head "
                             f"--port={port} starts one there") from None
    try:
        joined = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True,
                                timeout=_JOIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"what answers at {address} is no Ray cluster that can be joined from here: it "
                         f"was not joined within {_JOIN_S:g} s") from None
    if joined.returncode:
        why = (joined.stderr.strip().splitlines() or ["no reason given"])[-1]
        if "AuthToken" in joined.stderr:
            why = ("it wants its token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH unless it lies in "
                   "~/.ray/auth_token")
        raise InputError(f"the Ray cluster at {address} cannot be joined: {why}")
