"""A real run of jobs on this machine, or one that is read back."""

from pathlib import Path
from typing import Any

from lib import paths, store
from lib.measure import archive
from lib.schedule.runtime import jobs_file, run_record


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
