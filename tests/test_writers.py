"""Several writers at once, kills at a start, full disks: no line is lost, nothing is measured twice, nothing is half there."""

from contextlib import closing

import pytest

from lib import store
from lib.config.notebooks import MachineParams, SweepParams
from lib.measure import ceilings
from lib.measure.networks import visits_file
from lib.measure.operators import sweep
from lib.work.run_config import RunConfig
from tests import killed, nightly, refused
from tests.conftest import full_disk


@pytest.mark.parametrize(("rounds", "kills"), [pytest.param(1, 1, marks=pytest.mark.slow),
                                               nightly(6, 20)])
def test_several_writers_and_kills_at_a_start_lose_nothing(rounds, kills):
    result = killed.in_a_process("tests.writers", rounds, kills)
    assert [(name, one["wrong"], one["lost"]) for name, one in result.items()] == [
        ("Sweep", [], 0), ("Matrix", [], 0), ("Networks", [], 0)]
    assert result["Sweep"]["rows"] >= (rounds + kills) * 34, "headers, configurations and visits of each round"


@pytest.mark.parametrize("kept", [b"device,wh", b"device,what,median_us,p99_us,n,method,hardware_id,software_id\ncpu,la"])
def test_a_writer_killed_in_a_line_leaves_a_file_to_go_on_with(tmp_path, kept):
    path = tmp_path / "a.csv"
    path.write_bytes(kept)
    with closing(store.Appender(path, "overheads", resume=True)) as file:
        file.append(["cpu", "launch", 1.0, 1.0, 3, "how", "h", "s"])
    assert store.read(path, "overheads")["what"].tolist() == ["launch"]


def _visits(home):
    result = visits_file.Result(case=RunConfig("W1", 1), reason="x" * 200)
    visit = visits_file.Visit(round=0, network="W1", memory="kept", device="cpu", results=[result], identity={})
    with closing(store.Lines(home / "visits.jsonl", resume=True)) as file:
        file.write(visit.line)


def _ceilings(home):
    measured = ceilings.replay_ceilings(MachineParams(source="replay"))
    ceilings._save(measured.table, measured.overheads, MachineParams(), {}, [])


@pytest.mark.parametrize("write", [lambda home: sweep._folder(SweepParams()), _visits, _ceilings],
                         ids=["plan", "visits", "ceilings"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half(home, write):
    store.git_state()
    with full_disk(40), refused(r"cannot be written \((File too large|short write)"):
        write(home)
    assert not [path for path in home.rglob("*") if path.is_file() and path.stat().st_size == 40], "half there"
    write(home)
