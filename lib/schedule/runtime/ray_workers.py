"""A Ray cluster of one or many nodes: its slots, and the actors that are their workers.

Every node has this project at the same path, with the same environment and folders of outputs.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import numpy as np

from lib import files, paths
from lib.errors import InputError
from lib.measure.worker import allowed_cores
from lib.schedule.problem import Jobs
from lib.schedule.runtime.output import Message
from lib.schedule.runtime.worker_process import THREADS, ActorWorker
from lib.schedule.runtime.workers import WARM_UP, Capacity, Limits, Site, Slot, SlotLost, able, default_slots

_CONNECT_S, _JOIN_S = 5.0, 60.0
_STORE_BYTES = 100 * 2**20  # jobs pass nothing through Ray's object store
_JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
_IN_FOLDER_BYTES = len("/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.99")
_INNER = "r"  # the folder that Ray is given, in one of ours
_LOOPBACK = "127.0.0.1"
_LOCAL = {"RAY_AUTH_MODE": "token",  # without a token, other users of this host could run code on the cluster
          "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # listen on the loopback interface only
_GROUPS = ("put", "take")  # of the actor's methods; each has its own thread, so messages stay in order


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, as Ray counts it."""

    id: str
    host: str
    cpus: int
    gpus: int
    gpu: str  # cuda:<Ray's name of the accelerator>
    memory_mb: float


@dataclass(frozen=True)
class _Share:
    """The part of a node that a slot takes, and what it offers to a job."""

    node: Node
    number: int
    capacity: Capacity


class RayWorker:
    """A worker in an actor of Ray, on the node of its slot."""

    def __init__(self, ray: Any, share: _Share, slot: Slot, limits: Limits):
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpu = share.capacity.device_type != "cpu"
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH")))),
                       "LIB_OUTPUT": str(paths.OUTPUT), **dict.fromkeys(THREADS, str(slot.threads))}
        actor = ray.remote(concurrency_groups=dict.fromkeys(_GROUPS, 1))(ActorWorker)
        self._ray = ray
        here = NodeAffinitySchedulingStrategy(share.node.id, soft=False)
        self._actor = actor.options(num_cpus=0 if gpu else share.capacity.cores, num_gpus=int(gpu), scheduling_strategy=here,
                                    runtime_env={"env_vars": environment}).remote()
        device = "cuda:0" if gpu else slot.name  # Ray shows it only the GPU that it was given
        self._actor.run.remote(device, (), slot.threads, limits.beat_s, slot.warm_up)
        self.pipe, self._bell = Pipe(duplex=False)
        self._reply = self._request()

    def _request(self) -> Future:
        """Request the next messages; ``pipe`` is readable when they are there."""
        reply = self._actor.take.options(concurrency_group="take").remote().future()
        reply.add_done_callback(self._ring)
        return reply

    def _ring(self, _: Future) -> None:
        try:
            self._bell.send_bytes(b".")
        except OSError:  # it was shut down meanwhile
            return

    def messages(self) -> list[Message]:
        """Return the messages since the last call; an actor that does not answer is shut down."""
        while self.pipe.poll():  # first: the bell may ring a moment after the reply is there
            self.pipe.recv_bytes()
        if not self._reply.done():
            return []
        try:
            messages = self._reply.result()
        except Exception as error:  # whatever happened, no more messages come
            self.shut_down()
            return [("died", _reason(error))]
        self._reply = self._request()
        return messages

    def send(self, *message: Any) -> None:
        """Send it a message; one that died is noticed by its messages."""
        self._actor.put.options(concurrency_group="put").remote(message)

    def shut_down(self) -> None:
        """End it at once."""
        self._ray.kill(self._actor)
        self.pipe.close()
        self._bell.close()


def short_folder() -> tempfile.TemporaryDirectory:
    """Make a temporary folder with a path short enough for Ray's sockets; InputError if that is impossible.

    It is in RAY_TMPDIR or TMPDIR, or else in a temporary folder of the system. Only its owner can enter it. Ray gets a folder
    inside, because it opens its own to everybody.
    """
    parent = files.short_folder(len(os.path.join("ray-abcdefgh", _INNER)) + _IN_FOLDER_BYTES, os.environ.get("RAY_TMPDIR", ""),
                                "RAY_TMPDIR")
    return tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)


def _reason(error: Exception) -> str:
    """Return in one line why an actor ended, from Ray's paragraphs."""
    text = " ".join(str(error).split())
    if "node has died" in text or "not schedulable" in text:
        return "its node is gone"
    if "unavailable" in text:
        return "it cannot be reached any more: is its node gone?"
    detail = text.partition("Worker exit detail: ")[2] or text
    return f"the worker was killed, or ran out of memory? Ray says: {detail.partition('. ')[0]}"


class Cluster:
    """A Ray cluster: joined at an address or else started on this machine, until this object is closed."""

    def __init__(self, address: str = ""):
        self.address = address
        self._ray = None
        self._folder = None  # of a cluster started here
        self._shares = {}  # by the slots' names

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray:
            self._ray.shutdown()
        if self._folder:
            self._folder.cleanup()

    def join(self) -> None:
        """Join or start the cluster; InputError if that fails."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not self.address:
            os.environ.update(_LOCAL)
        try:
            import ray
        except ImportError:
            raise InputError("--engine ray needs the package ray: pip install -r requirements.txt") from None
        if self.address:
            _check_address(self.address)
            how = {"address": self.address}
        else:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the home folder
            self._folder = short_folder()
            how = {"address": "local", "_temp_dir": os.path.join(self._folder.name, _INNER), "num_cpus": len(allowed_cores()),
                   "include_dashboard": False, "object_store_memory": _STORE_BYTES,
                   "_system_config": {"worker_niceness": 0}}  # Ray's default, 15, yields to whatever else runs here
        try:
            ray.init(**how, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # of many kinds, and of many lines
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(f"Ray does not start, or cannot be joined at {self.address or 'this machine'}: {why}") from error
        self._ray = ray
        if not self.address and any(node["NodeManagerAddress"] != _LOOPBACK for node in ray.nodes()):
            raise InputError(f"Ray listens on other interfaces than {_LOOPBACK}, as it was imported before; start it from a "
                             "new process")

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive, the head first; further nodes of a host are numbered."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeName"], node["NodeID"]))
        seen, nodes = Counter(), []
        for node in alive:
            resources, name = node["Resources"], node["NodeName"]
            seen[name] += 1
            gpu = next((f"cuda:{key.partition(':')[2]}" for key in resources if key.startswith("accelerator_type:")), "cuda")
            nodes.append(Node(node["NodeID"], name if seen[name] == 1 else f"{name}#{seen[name]}", int(resources.get("CPU", 0)),
                              int(resources.get("GPU", 0)), gpu, resources.get("memory", np.inf) / 1e6))
        return nodes

    def site(self, jobs: Jobs, count: int = 0, warm_up: str = WARM_UP) -> Site:
        """Return the slots: ``count`` CPU slots per node (0: ``default_slots``), and all GPUs.

        A slot has its share of its node's memory. Slots that can run the same jobs are of one type; GPUs need the same name,
        too. Raises InputError for more slots than CPUs, and for a job that no slot can take.
        """
        if not self._ray:
            self.join()
        shares = [share for node in self.nodes() for share in _shares(node, count)]
        if not shares:
            raise InputError(f"the cluster at {self.address or 'local'} has neither a CPU nor a GPU")
        fits = able(jobs, [share.capacity for share in shares], "the cluster").T
        types = {}  # device type and the jobs that fit -> name of the type
        slots = []
        for share, jobs_fit in zip(shares, fits, strict=True):
            capacity = share.capacity
            device_type, key = capacity.device_type, (capacity.device_type, jobs_fit.tobytes())
            if key not in types:
                first = device_type not in types.values()
                types[key] = device_type if first else f"{device_type}:{capacity.cores}c{capacity.memory_mb:.0f}mb"
            name = f"{types[key]}[{share.node.host}/{share.number}]"
            slots.append(Slot(name, (), capacity.cores if device_type == "cpu" else 1, warm_up))
            self._shares[name] = share
        able_types = np.column_stack([np.frombuffer(jobs_fit, bool) for _, jobs_fit in types])
        return Site(tuple(slots), self.spawn, able_types, "probe-ray")

    def spawn(self, slot: Slot, limits: Limits) -> RayWorker:
        """Start a worker on a slot's node; SlotLost if that is gone."""
        share = self._shares[slot.name]
        if share.node.id not in {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}:
            raise SlotLost(f"node {share.node.host} is gone")
        return RayWorker(self._ray, share, slot, limits)


def _shares(node: Node, count: int) -> list[_Share]:
    if count < 0 or count > node.cpus > 0:
        raise InputError(f"{count} slots a node, but {node.host} has {node.cpus} CPUs: it must be 1 to {node.cpus}")
    cpus = (count or default_slots(node.cpus)) if node.cpus else 0
    cpu, gpu = Capacity("cpu", node.cpus // max(1, cpus), node.memory_mb / max(1, cpus)), Capacity(node.gpu, node.cpus, np.inf)
    return [_Share(node, number, capacity) for capacity, slots in ((cpu, cpus), (gpu, node.gpus)) for number in range(slots)]


def _check_address(address: str) -> None:
    """Refuse an address at which no cluster can be joined, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address != "auto":
        if not host or not port.isdecimal() or "/" in host:
            raise InputError(f"{address!r} is no address of a Ray cluster: it is HOST:PORT of its head, such as 10.0.0.1:6379, "
                             "or auto")
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"no Ray cluster answers at {address} ({error}); ray start --head --port={port} starts one "
                             "there") from None
    try:
        joined = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=_JOIN_S,
                              check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"what answers at {address} is no Ray cluster that can be joined from here: it was not joined within "
                         f"{_JOIN_S:g} s") from None
    if joined.returncode:
        why = (joined.stderr.strip().splitlines() or ["no reason given"])[-1]
        if "AuthToken" in joined.stderr:
            why = "it wants its token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH unless it lies in ~/.ray/auth_token"
        raise InputError(f"the Ray cluster at {address} cannot be joined: {why}")
