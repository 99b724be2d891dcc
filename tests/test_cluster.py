"""Jobs on a Ray cluster of two nodes: nothing is lost, whatever dies; what can never run is refused.

Those that run jobs do so every night, on two real nodes on this machine.
"""

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lib import files, paths
from lib.schedule.problem import Jobs
from lib.schedule.runtime import local_site, ray_workers
from lib.schedule.runtime.journal import Spec
from tests import refusal, refused, test_execute
from tests.test_execute import check, sleeping

pytestmark = pytest.mark.slow
LIMITS = replace(test_execute.LIMITS, beat_s=0.1, grace_s=10)
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}


@pytest.fixture(scope="module")
def joined():
    """Join two nodes of one CPU each, once for all tests; ``remove`` removes the second."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, ray_workers.short_folder() as home:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", home)
        (Path(home) / "ray").mkdir()  # Ray's Cluster writes the head's address there, and does not make the folder
        head = {**NODE, "include_dashboard": False, "no_monitor": True, "temp_dir": f"{home}/r",
                "_system_config": {"worker_niceness": 0}}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        second = nodes.add_node(**NODE)
        with ray_workers.Cluster(nodes.address) as result:
            result.join()
            result.remove = cache(lambda: nodes.remove_node(second))
            yield result
        nodes.shutdown()


def named(specs, **columns):
    return replace(Jobs.plain(len(specs)), ids=tuple(spec.job_id for spec in specs), **columns)


@pytest.mark.nightly
def test_all_jobs_end_once_on_both_nodes_in_one_record_whatever_actors_are_no_more(joined, tmp_path):
    """One is killed; one is frozen, gives no sign of life, and is ended. Their slots are hired for again."""
    faults = {"kill": "was killed", "freeze": "no sign of life"}
    specs = [*(Spec(fault, "tests.light:once", {"path": str(tmp_path / fault), "fault": fault, "value": fault})
               for fault in faults),
             *sleeping(12, 0.25), Spec("where", "tests.light:where", {}), Spec("bad", "tests.light:fail", {})]
    run = partial(test_execute.run, specs, tmp_path / "run", slots=joined.site(named(specs), warm_up="").slots,
                  limits=replace(LIMITS, silent_s=2.0), spawn=joined.spawn)
    attempts, ends, notes = run()
    check(attempts, ends, specs)
    ends = ends.set_index("job_id")
    assert len(notes) == 2 and (ends["status"] == "done").sum() == 15
    for fault, words in faults.items():
        tries = attempts[attempts["job_id"] == fault]
        assert tries["status"].tolist() == ["retried", "done"] and ends.loc[fault, "result"]["value"] == fault
        assert words in tries["reason"].iloc[0] and "\n" not in tries["reason"].iloc[0]
    assert "this job is wrong" in ends.loc["bad", "reason"] and (attempts["job_id"] == "bad").sum() == 3
    assert set(attempts["device"]) == {f"cpu[{node.host}/0]" for node in joined.nodes()} and len(set(attempts["device"])) == 2
    assert ends.loc["where", "result"] == {"lib": str(paths.ROOT / "lib"), "output": str(paths.OUTPUT), "threads": "1"}
    assert len(run()[0]) == len(attempts), "all have ended: nothing is done again"


def test_nodes_that_differ_in_what_they_can_run_are_of_different_types(monkeypatch):
    """Types stay few: slots are of one type unless some job fits one and not the other; GPUs by what Ray calls them."""
    result = [ray_workers.Node("a", "big", 8, 2, "cuda:A100", 64_000), ray_workers.Node("b", "small", 2, 0, "cuda", 4_000),
             ray_workers.Node("c", "other", 2, 1, "cuda", 4_000)]
    joined = ray_workers.Cluster("faked")
    monkeypatch.setattr(joined, "nodes", lambda: result)
    monkeypatch.setattr(joined, "join", lambda: None)
    plain = local_site.fleet_of(joined.site(named(sleeping(2))).slots)
    assert plain.types == ("cpu", "cuda:A100", "cuda") and plain.counts.tolist() == [12, 2, 1]
    site = joined.site(named(sleeping(2), memory_mb=np.array([0.0, 30_000.0]), cpu_cores=np.array([0.0, 4.0])), 2)
    fleet = local_site.fleet_of(site.slots)
    assert fleet.types == ("cpu", "cuda:A100", "cpu:1c2000mb", "cuda")
    assert site.able.tolist() == [[True, True, True, True], [True, True, False, False]]
    assert [slot.threads for slot in site.slots if slot.name.startswith("cpu")] == [4, 4, 1, 1, 1, 1]
    result[:] = result[1:2]  # without a GPU, whose memory is its own
    with refused("no slot of the cluster can run job 'j1.*1,000,000,000 MB"):
        joined.site(named(sleeping(2), memory_mb=np.array([0.0, 1e9])))


LOCAL = """
import json, os, subprocess, sys, time
from pathlib import Path
import psutil
from lib.schedule.problem import Jobs
from lib.schedule.runtime import ray_workers as cluster
from lib.schedule.runtime.workers import Limits
with cluster.Cluster() as local:
    local.join()
    folder = Path(local._folder.name)
    sockets = [str(path) for path in folder.glob("*/session_*/sockets/*")]
    worker, end = local.spawn(local.site(Jobs.plain(1), warm_up="").slots[0], Limits()), time.monotonic() + 60
    while not worker.messages() and time.monotonic() < end:
        time.sleep(0.05)
    this = psutil.Process()
    listening = {(process.name(), connection.laddr.ip) for process in (this, *this.children(recursive=True))
                 for connection in process.net_connections("inet") if connection.status in ("LISTEN", "NONE")}
    address = local._ray.get_runtime_context().gcs_address
    stranger = subprocess.run([sys.executable, "-c", f"import ray; ray.init(address={address!r}, log_to_driver=False)"],
                              env={**os.environ, "RAY_AUTH_TOKEN": "of another cluster", "RAY_NUM_REDIS_GET_RETRIES": "1"},
                              capture_output=True)
    print(json.dumps({"nodes": len(local.nodes()), "sockets": sockets, "folder": str(folder), "listening": sorted(listening),
                      "mode": oct(folder.stat().st_mode & 0o777), "joined": stranger.returncode == 0}))
"""


@pytest.mark.nightly
def test_a_cluster_starts_on_a_machine_that_never_ran_ray(tmp_path):
    """Empty HOME, XDG folders and TMPDIR, the latter with a long path: sockets still have room, and nothing is left behind."""
    fresh = {}
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        path = tmp_path / f"{name.lower()}-{'long' * 30}"
        path.mkdir()
        fresh[name] = str(path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XDG_"))}
    open_door = {"RAY_AUTH_MODE": "disabled"}  # for the clusters of somebody who trusts all who reach them, not for this one
    ran = subprocess.run([sys.executable, "-c", LOCAL], env={**kept, **fresh, **open_door}, cwd=paths.ROOT,
                         capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["nodes"] == 1 and result["sockets"] and max(map(len, result["sockets"])) <= 107
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(result["listening"]) >= 4 and not [one for one in result["listening"] if one[1] not in loopback]
    assert result["mode"] == "0o700" and not result["joined"]
    assert not Path(result["folder"]).exists() and not list(Path(fresh["HOME"]).rglob("*"))


def test_a_cluster_that_is_started_here_is_closed_to_others(monkeypatch):
    """What Ray is told, by which it is closed in the test before."""
    told, nodes = {}, [{"NodeManagerAddress": "127.0.0.1"}]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda **how: told.update(how), nodes=lambda: nodes,
                                                            shutdown=told.clear))
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled"})
    with ray_workers.Cluster() as local:
        local.join()
        inner = Path(told["_temp_dir"])
        assert stat.S_IMODE(inner.parent.stat().st_mode) == 0o700
        assert (told["address"], told["include_dashboard"]) == ("local", False)
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64 and os.environ["RAY_AUTH_MODE"] == "token"
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0", "or it listens on all interfaces"
    assert not told and not inner.parent.exists()
    nodes.append({"NodeManagerAddress": "10.0.0.1"})
    with ray_workers.Cluster() as local, refused("Ray listens on other interfaces than 127.0.0.1"):
        local.join()


def test_without_room_for_sockets_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(files, "SOCKET_BYTES", 60)
    with refused("set RAY_TMPDIR"):
        ray_workers.short_folder()


def test_addresses_without_a_cluster_are_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "jobs.csv").write_text("job_id,workload_id,steps\na,W1,1\n")
    monkeypatch.setattr(ray_workers, "_JOIN_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for words, said in ((("--engine=ray", "--address=127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
                            (("--engine=ray", "--address=ray://10.0.0.1:10001"), "HOST:PORT"),
                            (("--engine=ray", f"--address=127.0.0.1:{deaf.getsockname()[1]}"), "is no Ray cluster"),
                            (("--address=127.0.0.1:1",), "--engine ray")):
            assert said in refusal("run-jobs", tmp_path / "jobs.csv", f"--out={tmp_path / 'o'}", *words)


@pytest.mark.nightly
def test_a_node_is_lost_and_the_other_goes_on_until_it_is_lost_too(joined, tmp_path):
    """Jobs that the policy bound to the lost node go to the other one. The last test, as no later one has two nodes."""
    done = []

    def spawn(slot, limits):
        worker = joined.spawn(slot, limits)
        receive = worker.messages

        def messages():
            received = receive()
            done.extend(message for message in received if message[0] == "done")
            if len(done) >= 2:
                joined.remove()
            return received

        worker.messages = messages
        return worker

    specs = sleeping(10, 0.3)
    attempts, ends, notes = test_execute.run(specs, tmp_path / "one", "earliest-finish", 0.3, joined.site(
        named(specs), warm_up="").slots, LIMITS, spawn)
    check(attempts, ends, specs)
    assert set(ends["status"]) == {"done"} and len(set(attempts["device"])) == 2
    assert any("given up: node" in note for note in notes)
    left, = joined.nodes()
    assert set(attempts.sort_values("end_s").tail(5)["device"]) == {f"cpu[{left.host}/0]"}
    slot, = joined.site(named(specs[:1]), warm_up="").slots
    away = replace(slot, name="cpu[away/0]")
    joined._shares[away.name] = replace(joined._shares[slot.name], node=replace(left, id="0" * 56))
    with refused("no slot is left for 1 jobs, such as j0.*node .* is gone"):
        test_execute.run(specs[:1], tmp_path / "none", predicted=1.0, slots=(away,), limits=LIMITS, spawn=joined.spawn)
