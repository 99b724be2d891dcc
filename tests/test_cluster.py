"""Jobs on a Ray cluster of two nodes: nothing is lost, whatever dies; what can never run is refused.

Those that run jobs do so every night, on two real nodes on this machine, where Ray is installed.
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib import paths
from lib.schedule.run import jobs, ray
from lib.schedule.run.backend import TimeLimit
from lib.schedule.run.slots import fleet_of
from tests import refusal, refused
from tests.killed import prepared
from tests.test_execute import check, job, sleeping

pytestmark = pytest.mark.slow
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}


@pytest.fixture
def two_nodes(monkeypatch):
    """Join two nodes of one CPU each; give Ray, its cluster of nodes, and the second node."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()  # Ray's Cluster writes the head's address there, and does not make the folder
        head = {**NODE, "include_dashboard": False, "no_monitor": True, "temp_dir": f"{folder}/r",
                "_system_config": {"worker_niceness": 0}}
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        second = nodes.add_node(node_name="second", **NODE)
        with ray.cluster(nodes.address) as joined:
            yield joined, nodes, second
        nodes.shutdown()


@pytest.mark.nightly
def test_all_jobs_end_once_whatever_dies_and_a_node_that_joins_is_used(two_nodes, tmp_path, monkeypatch):
    """An actor is killed, another is frozen and ended by its time limit; then a node dies, and one joins, with cards."""
    joined, nodes, second = two_nodes
    faults = {"kill": "died unexpectedly", "freeze": "not done after its time limit"}
    rows = [*(job(fault, "marked", path=str(tmp_path / fault), fault=fault, value=fault) for fault in faults),
            *sleeping(12, 0.3), job("where", "where"), job("bad", "fail")]
    with closing(ray.RayWorkers(joined, warm_up="")) as workers:
        attempts, ends, notes = jobs.execute(prepared(rows, workers), tmp_path / "run", TimeLimit(5.0, 30.0))
        check(attempts, ends, rows)
        ends = ends.set_index("job_id")
        assert (ends["status"] == "done").sum() == 15 and "this job is wrong" in ends.loc["bad", "reason"]
        for fault, words in faults.items():
            tries = attempts[attempts["job_id"] == fault]
            assert tries["status"].tolist() == ["retried", "done"] and words in tries["reason"].iloc[0]
            assert ends.loc[fault, "result"]["value"] == fault and "\n" not in tries["reason"].iloc[0]
        assert set(attempts["device"]) == {slot.name for slot in workers.slots} and len(workers.slots) == 2
        where = ends.loc["where", "result"]
        assert where["lib"] == str(paths.ROOT / "lib") and where["output"] == str(paths.OUTPUT)

        class Losing:
            """The workers, whose second node dies after two jobs, and is replaced by another."""

            def __getattr__(self, name):
                return getattr(workers, name)

            def poll(self, timeout_s):
                events = workers.poll(min(timeout_s, 1.0))
                done.extend(event for event in events if isinstance(event, ray.TaskEnd) and event.status == "done")
                if len(done) >= 2 and len(nodes.list_all_nodes()) == 2 and not replaced:
                    replaced.append(nodes.remove_node(second))
                    nodes.add_node(node_name="third", **NODE)
                return events

        done, replaced, rows = [], [], sleeping(30, 0.5)
        attempts, ends, notes = jobs.execute(prepared(rows, Losing(), "mct", predicted=0.5), tmp_path / "two", TimeLimit())
    check(attempts, ends, rows)
    assert set(ends["status"]) == {"done"} and len(workers.slots) == 3
    assert set(attempts.loc[attempts["status"] == "lost", "reason"]) <= {"its node is gone"}
    assert len(set(attempts["device"])) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")  # of a node that is started with some of its host's cards
    nodes.add_node(node_name="cards", **{**NODE, "num_cpus": 0, "num_gpus": 2})
    rows = [job("one", "where"), job("other", "where"), job("both", "where", devices=2)]
    with closing(ray.RayWorkers(joined, warm_up="")) as workers:
        seconds = [100.0 if name.startswith("cpu") else 1.0 for name in fleet_of(workers.slots).types]
        _, ends, _ = jobs.execute(prepared(rows, workers, "met", predicted=seconds), tmp_path / "cards", TimeLimit())
    cards = {row.job_id: row.result["card"] for row in ends.itertuples()}
    assert {cards["one"], cards["other"]} == {"2", "3"} and set(cards["both"].split(",")) == {"2", "3"}


def test_slots_of_nodes_are_their_cpus_and_cards():
    """Each node has types of its own, so that a job on several devices runs on one node."""
    node = {"NodeID": "a", "NodeName": "big", "Alive": True,
            "Resources": {"CPU": 8.0, "GPU": 2.0, "memory": 64e9, "accelerator_type:A100": 1.0}}
    slots = ray.slots_of(node, 2)
    assert [(slot.name, slot.device_type, slot.threads, slot.card) for slot in slots] == [
        ("cpu@big[0]", "cpu@big", 4, ""), ("cpu@big[1]", "cpu@big", 4, ""),
        ("cuda:A100@big[0]", "cuda:A100@big", 1, "0"), ("cuda:A100@big[1]", "cuda:A100@big", 1, "1")]
    assert slots[0].memory_mb == 32_000
    with refused("9 slots a node, but big has 8 CPUs: it must be 1 to 8"):
        ray.slots_of(node, 9)


def test_what_is_missing_or_no_cluster_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "jobs.csv").write_text("job_id,workload_id,steps\na,W1,1\n")

    def said(*words):
        return refusal("run-jobs", tmp_path / "jobs.csv", f"--output={tmp_path / 'o'}", *words)

    assert "--engine ray" in said("--address=127.0.0.1:1")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert "Ray is not installed: pip install -e '.[cluster]'" in said("--engine=ray")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert "no Ray cluster answers at 127.0.0.1:1" in said("--engine=ray", "--address=127.0.0.1:1")
    assert "HOST:PORT" in said("--engine=ray", "--address=ray://localhost")
