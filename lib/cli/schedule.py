"""The verbs of scheduling: ``schedule`` (simulated), ``run-jobs`` (real). Imports nothing heavy."""

import argparse
import io
from pathlib import Path

from lib.cli.options import a_path, add_verb, flag, new_file, number, option, whole
from lib.errors import InputError


def _schedule(options: argparse.Namespace) -> None:
    import json

    from lib.schedule import answers, problem_files

    if options.out and options.trace and options.out.resolve() == options.trace.resolve():
        raise InputError(f"--out and --trace are both {options.out}; name two files")
    problem = problem_files.read(options.times, options.devices, options.jobs, options.actual, options.energy)
    high_s = problem_files.read_high(options.high, problem, options.times) if options.high else None
    answer = answers.schedule(problem, options.policy, options.objective, high_s, options.time_limit_risk)
    answer.write(options.out, options.trace)
    print(json.dumps(answer.figures | answer.risks, indent=1) if options.json else answers.text(answer))


def _run_jobs(options: argparse.Namespace) -> bool:
    from contextlib import ExitStack, closing

    from lib.schedule.policies import policy_for
    from lib.schedule.run import jobs, jobs_file, processes, ray, slots
    from lib.schedule.run import record as records

    if options.address and options.engine != "ray":
        raise InputError("--address is that of a Ray cluster: it goes with --engine ray")
    policy_for(options.policy, options.objective)
    out = jobs_file.folder_of(options.jobs, options.out)
    rows, table = jobs_file.read(options.jobs, out)
    with ExitStack() as opened:
        if options.engine == "ray":
            cluster = opened.enter_context(ray.cluster(options.address or "auto"))
            workers = opened.enter_context(closing(ray.RayWorkers(cluster, options.slots)))
        else:
            here = slots.slots_here(options.slots)
            workers = opened.enter_context(closing(processes.ProcessWorkers(here)))
        prepared = jobs.prepare(rows, table, out, options.policy, options.objective, workers)
        record = jobs.run(prepared, out)
    print(records.text(record))
    print(f"{out / 'schedule.csv'}, {out / 'trace.json'}, {_drawn(record, out / 'gantt.svg')}")
    return (record.ends["status"] != "done").any()


def _drawn(record, path: Path) -> Path:
    """Draw a run as a Gantt chart, as measured and as simulated; return its file."""
    import matplotlib as mpl

    from lib import files
    from lib.schedule.gantt import gantt

    mpl.use("agg")  # a command opens no window
    figure = gantt(record.side_by_side(), record.job_classes, record.facts["bound_s"])
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    files.replace(path, drawn.getvalue())
    return path


def add(verbs) -> None:
    """Add the verbs of scheduling."""
    add_verb(verbs, _schedule, "schedule", "place jobs on devices, from files of times and devices, in simulation",
             option("--times", "CSV: job_id and one column of seconds per device type", a_path, required=True),
             option("--devices", "CSV: device, type, count; memory, cores, watts, price", a_path, required=True),
             option("--jobs",
                    "CSV: job_id and arrival_s, deadline_s, memory_mb, cpu_cores, workload_id, devices", a_path),
             option("--actual", "CSV like --times: the actual times; policies see --times", a_path),
             option("--energy",
                    "CSV: job_id, one column of joules per device type, source (measured, modelled or assumed; default "
                    "measured); missing values: the watts of --devices, assumed", a_path),
             option("--high",
                    "CSV like --times: the high ends of their 90 %% ranges; the answer says how likely each deadline is kept, "
                    "and proposes time limits", a_path),
             option("--time-limit-risk",
                    "with --high: the probability with which a job may overrun its time limit (default 0.05)",
                    number(0, 1, above=True), 0.05, metavar="RISK"),
             option("--policy", "hybrid (default), or a baseline; an unknown name lists all", default="hybrid"),
             option("--objective", "for hybrid: makespan, mean_jct, p99_jct, deadline, energy, price", default="makespan"),
             option("--out", "write the schedule to this new CSV", new_file),
             option("--trace", "write a Chrome trace, which ui.perfetto.dev opens, to this new JSON", new_file),
             flag("--json", "print the figures as one object"))
    add_verb(verbs, _run_jobs, "run-jobs", "run jobs on this machine or on a cluster; a second call resumes",
             option("jobs",
                    "CSV: job_id, and workload_id with steps or notebook (a path in the folder of this file, or in the "
                    "repository) with parameters (JSON); arrival_s, memory_mb, ...", a_path),
             option("--policy", "as in schedule", default="hybrid"),
             option("--objective", "as in schedule", default="makespan"),
             option("--slots", "CPU slots of equal size per node (default: one per core, at most 16)", whole(1), 0),
             option("--engine", "worker processes on this machine (default), or a Ray cluster of several nodes",
                    default="local", choices=("local", "ray")),
             option("--address", "the head of the Ray cluster (default: the cluster of this machine)",
                    default="", metavar="HOST:PORT"),
             option("--out", "folder for queue and record, and nothing else (default: data/schedule/<name of the file>)",
                    a_path),
             epilog="A killed job runs again: its effects other than its result happen at least once.")
