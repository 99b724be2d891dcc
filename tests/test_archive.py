"""What was measured before: machines of the same hardware keep their runs apart."""

import shutil

import pytest

from lib import paths
from lib.errors import InputError
from lib.measure import archive
from lib.measure.training import profiled
from lib.studies.profile import tables


def test_runs_of_one_id_and_hardware_on_two_machines_are_two_runs(home):
    reference = next(path for path in sorted(paths.REFERENCE.glob("*")) if (path / "runs").is_dir())
    for machine in ("one", "two"):
        for name in ("runs", "profiles"):
            shutil.copytree(reference / name, paths.IMPORTED / machine / name)
    slower = next((paths.IMPORTED / "two" / "profiles").glob("*_W1_*_train.csv"))
    header, *lines = slower.read_text().splitlines()
    at = header.split(",").index("forward_time_ms")
    cells = [line.split(",") for line in lines]
    slower.write_text("\n".join([header, *(",".join([*row[:at], "9999.0", *row[at + 1:]]) for row in cells), ""]))
    runs = archive.runs("measure")
    assert runs["run_id"].is_unique
    assert sorted(run_id.removeprefix("two/") for run_id in runs["run_id"] if "/" in run_id) == sorted(
        run_id for run_id in runs["run_id"] if "/" not in run_id)
    side = tables.side_by_side(runs, archive.rows(runs, "measure"))
    forward = side[side["workload_id"] == "W1"].set_index("run_id")["forward"]
    assert (forward.filter(like="two/") == 9999.0).all()
    assert (forward.drop(list(forward.filter(like="two/").index)) < 9999.0).all()


@pytest.mark.parametrize(("wanted", "words"), [({"batch_size": 999}, ", batch size 999, fp32"),
                                               ({"precision": "bf16"}, ", bf16")])
def test_a_replay_is_of_the_run_that_was_asked_for(wanted, words):
    with pytest.raises(InputError, match=f"has no run of W1 on cpu{words}; it has: W1 on cpu, batch size 64, fp32"):
        profiled.replay("W1", "cpu", **wanted)
    assert profiled.replay("W1", "cpu", batch_size=64).run["batch_size"] == 64
