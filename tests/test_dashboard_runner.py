"""The runner of the dashboard: runs are placed, cancelled and ended; kills and an absent database lose none."""

import re
from contextlib import closing

import pytest

from lib.dashboard import inventory, predictions
from lib.dashboard import tables as db
from lib.dashboard.database import Database
from lib.dashboard.runner import Runner
from lib.schedule.run.slots import Slot
from tests import killed_queue, refused, until
from tests.killed_queue import add_runs, opened
from tests.postgres import postgres  # noqa: F401
from tests.test_cluster import two_nodes  # noqa: F401

pytestmark = pytest.mark.slow
CPU, CARD = Slot("cpu[0]", cores=(0,), core_count=1), Slot("cuda:0", "cuda:0")


def wait_for(database, ids, states=db.ENDS, within_s=60.0):
    """Return runs once each is in one of the states."""
    def there():
        runs = [database.get(db.Run, run_id) for run_id in ids]
        return runs if all(run.state in states for run in runs) else None

    return until(there, within_s)


@pytest.fixture
def light(tmp_path):
    """Lead the queue of a folder with light slots."""
    database, runner = opened(tmp_path)
    with closing(runner):
        runner.start()
        yield database, runner


def test_runs_are_placed_with_reasons_learned_from_cancelled_and_ended(light):
    database, runner = light
    sleep = ("tests.light:sleep", {"seconds": 0.01})
    ids = add_runs(database, [sleep, ("tests.light:fail", {}), ("tests.light:kill", {})])
    done, failed, killed = wait_for(database, ids)
    assert [run.state for run in (done, failed, killed)] == [db.FINISHED, db.FAILED, db.FAILED]
    assert "this job is wrong" in failed.job.reason and killed.job.attempt == 3
    assert done.job.device in ("cpu[0]", "cpu[1]") and done.job.start_s < done.job.end_s
    assert done.job.predicted_s == 600 and "predicted 600 s on cpu (a guess" in done.job.placement
    long, = add_runs(database, [("tests.light:sleep", {"seconds": 60})])
    running, = wait_for(database, [long], (db.RUNNING,))
    assert "the median of 1 earlier runs" in running.job.placement
    assert database.queue.cancel(long) and wait_for(database, [long])[0].state == db.CANCELLED
    with refused("is being written by another process"):
        opened(database.engine.url.database.removeprefix("file:").rpartition("/")[0])[1].start()


def test_a_reserved_card_is_left_alone_and_a_wanted_one_that_is_not_there_is_refused(light, monkeypatch):
    database, runner = light
    agent = next(agent for agent in database.rows(db.Agent) if not agent.manual)
    assert agent.slots == ["cpu[0]", "cpu[1]"]
    with database.reading() as session:
        assert inventory.allowed_types(session, None, []) is None
        assert inventory.allowed_types(session, agent.id, []) == ["cpu"]
        with refused("has no such GPU; slots there: cpu"):
            inventory.allowed_types(session, None, [0])
    gpu = {"name": "a card", "compute_capability": "8.9", "memory_gib": 24}
    monkeypatch.setattr("lib.measure.machine.own_hardware", lambda name: gpu)
    with database.writing() as session:
        inventory.save(session, [CPU, CARD])
    with database.writing() as session:
        db.get(session, db.Agent, agent.id).gpus[0].is_allocated = True
        gone = db.Agent(name="gone", manual=False, slots=["cuda:1"], gpus=[db.Gpu(index=1, is_allocated=True)])
        session.add(gone)
    with database.writing() as session:
        assert inventory.reserved(session) == {"cuda:0"}, "not a card of another machine"
        inventory.save(session, [CPU, CARD])
    with database.reading() as session:
        assert inventory.allowed_types(session, None, [0, 3]) == ["cuda:0"]
        with refused("no run is placed there"):
            inventory.allowed_types(session, gone.id, [])


@pytest.mark.cuda
def test_a_run_goes_to_the_card_that_it_names(home):
    database = Database()
    with closing(Runner(database)) as runner:
        runner.start()
        with database.reading() as session:
            assert inventory.allowed_types(session, None, [0]) == ["cuda:0"]
        ids = add_runs(database, [("tests.light:where", {})], device_types=["cuda:0"])
        run, = wait_for(database, ids)
    (gpu,) = next(agent for agent in database.rows(db.Agent) if not agent.manual).gpus[:1]
    assert run.job.device == "cuda:0" and run.job.result["devices"] == ["cuda:0"] and gpu.index == 0 and gpu.name


def test_the_end_of_a_server_loses_no_run(tmp_path):
    """It is closed while a run goes on, and another one finishes that."""
    database, runner = opened(tmp_path)
    runner.start()
    trail = tmp_path / "trail"
    ids = add_runs(database, [("tests.light:trail", {"path": str(trail), "seconds": 1.5})])
    wait_for(database, ids, (db.RUNNING,))
    until(trail.exists)
    runner.close()
    database, again = opened(tmp_path)
    with closing(again):
        again.start()
        run, = wait_for(database, ids)
    assert run.state == db.FINISHED and run.job.attempt == 2
    assert killed_queue.wrong_in(database, ids, [trail]) == ([], 2)


@pytest.mark.nightly
def test_kills_of_the_server_lose_no_run_and_end_none_twice(tmp_path):
    summary = killed_queue.run(tmp_path, runs=8, kills=3, every_s=(4.0, 8.0))
    assert summary["wrong"] == [] and summary["kills"] == 3


def test_a_fine_tune_is_predicted_by_its_steps_and_evaluations(home):
    config = {"root": "synthetic:breastmnist", "model_flavour": "simple_cnn", "loss_name": "cross_entropy", "epochs": 3,
              "load_pretrained": False, "batch_size": 16, "autocast_dtype": "fp32", "max_datapoints_per_class": 24}
    (seconds, words), = predictions.steps_s(config, [("cpu", "any"), ("cuda", "none")]).values()
    numbers = re.match(r"(\d+) steps of (.+) ms, (\d+) evaluated batches of (.+) ms, ", words).groups()
    steps, step_ms, batches, batch_ms = map(float, numbers)
    assert steps == 3 * 3 and batches == 3 * 3 + 3, "48 samples of each split"
    assert seconds == pytest.approx((steps * step_ms + batches * batch_ms) / 1e3, rel=0.01)
