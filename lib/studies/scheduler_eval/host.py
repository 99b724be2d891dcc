"""One host as it was measured: how its slots slow each other down, jobs to try that on, a real run on it or one read back."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import paths, store
from lib.errors import InputError, choices
from lib.measure import archive, machine
from lib.schedule import job_mixes
from lib.schedule.contention import ALONE, Contention
from lib.schedule.problem import Fleet, Problem
from lib.schedule.runtime import interference, jobs_file, run_record
from lib.studies.scheduler_eval import comparison, scenario

_SLOTS = 2
_SPAN_S = (60.0, 1800.0)
_GPU = "t4"


def contention_table(source: str, reference: str = "") -> tuple[pd.DataFrame, str]:
    """Return the table ``contention`` of this machine or, in a replay or where none was measured, of a reference machine.

    The note says whose it is. Raises InputError where there is none at all.
    """
    own = interference.newest(machine.ids()["hardware_id"]) if source == "measure" else None
    if own is not None:
        return own, "Contention as measured on this machine."
    pattern = f"{interference.FOLDER}/*.csv"
    reference, note = archive.stand_in(pattern, "table of contention", reference)
    name, path = archive.machine_with(pattern, "a table of contention", reference, "; measure it: python -m lib contention")
    return interference.read(path), f"REPLAY of contention as measured on {name}. {note}".strip()


@dataclass(frozen=True)
class Host:
    """``rates``: steps per second of each workload alone on a CPU slot and on a GPU; ``table``: the measured contention."""

    rates: pd.DataFrame
    table: pd.DataFrame

    def contention(self, types: tuple[str, ...]) -> Contention:
        """Return the slowdowns between those types of device; of a pair of types that was not measured, none."""
        return Contention.from_table(self.table, list(self.rates.index), types)

    def slots(self, count: int) -> comparison.Mix:
        """Return a mix of jobs for the CPU slots alone."""
        return partial(job_mixes.draw, self.rates[["cpu"]], Fleet.from_counts({"cpu": _SLOTS}), count, span_s=_SPAN_S)

    def with_gpu(self, count: int, cores: float, seed: int) -> Problem:
        """Return jobs for the slots and a GPU, on which each takes ``cores`` of the host."""
        fleet = replace(Fleet.from_counts({"cpu": _SLOTS, _GPU: 1}, cpu_cores=[1.0, np.nan]), host_cores=float(_SLOTS))
        drawn = job_mixes.draw(self.rates[["cpu", _GPU]], fleet, count, seed, span_s=_SPAN_S)
        return replace(drawn, jobs=replace(drawn.jobs, cpu_cores=np.full(count, cores)))


def host(table: pd.DataFrame, times: scenario.StepTimes) -> Host:
    """Return the measured workloads with their times alone on a slot, and on a GPU as step times have them, given or not."""
    alone = table.query(f"beside == {ALONE[0]!r} and device_type == 'cpu'").set_index("workload_id")["step_ms"]
    complete = times if _GPU in set(times.table["device"]) else scenario.step_times([_GPU], scenario.job_classes())
    gpu = complete.wide("step_ms", [_GPU])[_GPU]
    names = [name for name in alone.index if name in gpu.index]
    if not names:
        raise InputError(f"contention was measured of {choices(alone.index) or 'nothing'}, and step times are known of "
                         f"{choices(gpu.index)}: no job class has both; python -m lib contention --workloads all measures it")
    return Host(pd.DataFrame({"cpu": 1e3 / alone[names], _GPU: 1e3 / gpu[names]}), table)


def real_run(p: Any) -> tuple[run_record.RunRecord, str]:
    """Run jobs on this machine as the parameters of 07 say, or read a reference machine's run back; return it with a note."""
    if p.source == "replay":
        reference, note = archive.stand_in(run_record.PATTERN, "record of a real run", p.reference)
        name, record = run_record.of_reference(reference)
        return record, f"REPLAY of a real run on {name}, {record.facts['written_utc'][:10]}. {note}".strip()
    folder = paths.DATA / run_record.FOLDER
    out = folder / store.fresh_name("trial", lambda name: (folder / name).exists())
    jobs = Path(p.jobs) if p.jobs else jobs_file.write_trial(p.workloads.split(","), p.real, p.job_s, out)
    record = jobs_file.run(jobs_file.prepare(jobs, out), out)
    return record, f"Run on this machine, {record.facts['machine']}; its record and trace are in data/schedule/{out.name}."
