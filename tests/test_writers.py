"""Several writers of one file, killed writers and full disks: no row is lost or torn, nothing is half there."""

import multiprocessing
import random
import time
from contextlib import closing

import pytest

from lib import store
from lib.config.notebooks import MachineParams, SweepParams
from lib.measure import ceilings
from lib.measure.operators import sweep
from tests import refused
from tests.conftest import full_disk

ROWS = 20


def write(path, writer):
    """Append rows to a file that other processes append to as well; it is opened anew for each row."""
    for number in range(1, ROWS + 1):
        with closing(store.Appender(path, "overheads", resume=True, timeout_s=60)) as file:
            file.append([f"writer{writer}", "launch", 1.0, 1.0, number, "how", "h", "s"])


@pytest.mark.slow
def test_writers_that_take_turns_and_are_killed_lose_no_row(tmp_path):
    path, draw, fork = tmp_path / "a.csv", random.Random(0), multiprocessing.get_context("fork")
    writers = [fork.Process(target=write, args=(path, number)) for number in range(6)]
    for writer in writers:
        writer.start()
    for doomed in writers[:3]:
        time.sleep(draw.uniform(0, 0.05))
        doomed.kill()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers[3:]] == [0] * 3
    write(path, 6)  # goes on after whatever the killed ones left
    rows = store.read(path, "overheads").groupby("device")["n"].agg(list)
    for name, numbers in rows.items():
        assert numbers == list(range(1, len(numbers) + 1)), "each row once, in order"
        assert len(numbers) == ROWS or name in ("writer0", "writer1", "writer2")
    assert {"writer3", "writer4", "writer5", "writer6"} <= set(rows.index)


def save_ceilings(home):
    measured = ceilings.replay_ceilings(MachineParams(source="replay"))
    ceilings._save(measured.table, measured.overheads, MachineParams(), {}, [])


@pytest.mark.parametrize("write", [lambda home: sweep._folder(SweepParams()), save_ceilings], ids=["plan", "ceilings"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half(home, write):
    store.git_state()
    with full_disk(40), refused(r"cannot be written \((File too large|short write)"):
        write(home)
    assert not [path for path in home.rglob("*") if path.is_file() and path.stat().st_size == 40], "half there"
    write(home)
