"""The verbs ``schedule`` (simulated) and ``run-jobs`` (real). Imports nothing heavy."""

import argparse
import io
import json
from pathlib import Path

from lib import files
from lib.cli.options import a_path, add_verb, flag, new_file, number, option, whole
from lib.errors import InputError


def _schedule(options: argparse.Namespace) -> None:
    from lib.schedule import answers, problem_files

    output, trace = options.output, options.trace
    if output and trace and output.resolve() == trace.resolve():
        raise InputError(f"--output and --trace are both {output}; name two files")
    problem = problem_files.read(options.times, options.devices, options.jobs, options.actual,
                                 options.energy)
    high_s = None
    if options.high:
        high_s = problem_files.read_high(options.high, problem, options.times)
    answer = answers.schedule(problem, options.policy, options.objective, high_s,
                              options.time_limit_risk)
    answer.write(output, trace)
    if options.json:
        print(json.dumps(answer.figures | answer.risks, indent=1))
    else:
        print(answers.text(answer))


def _run_jobs(options: argparse.Namespace) -> bool:
    from contextlib import ExitStack, closing

    from lib.schedule.policies import policy_for
    from lib.schedule.run import jobs, jobs_file, processes, ray, slots
    from lib.schedule.run import record as records

    if options.address and options.engine != "ray":
        raise InputError("--address is that of a Ray cluster: it goes with --engine ray")
    policy_for(options.policy, options.objective)
    out = jobs_file.folder_of(options.jobs, options.output)
    rows, table = jobs_file.read(options.jobs, out)
    with ExitStack() as opened:
        if options.engine == "ray":
            cluster = opened.enter_context(ray.cluster(options.address or "auto"))
            workers = ray.RayWorkers(cluster, options.slots)
        else:
            workers = processes.ProcessWorkers(slots.slots_here(options.slots))
        opened.enter_context(closing(workers))
        prepared = jobs.prepare(rows, table, out, options.policy, options.objective, workers)
        record = jobs.run(prepared, out)
    print(records.text(record))
    print(f"{out / 'schedule.csv'}, {out / 'trace.json'}, {_drawn(record, out / 'gantt.svg')}")
    return (record.ends["status"] != "done").any()


def _drawn(record, path: Path) -> Path:
    """Draw a run as a Gantt chart, as measured and as simulated; return its file."""
    import matplotlib as mpl

    from lib.schedule.gantt import gantt

    mpl.use("agg")  # a command opens no window
    figure = gantt(record.side_by_side(), record.job_classes, record.facts["bound_s"])
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    return files.replace(path, content.getvalue())


def add(verbs) -> None:
    """Add the verbs."""
    verb = add_verb(verbs, "schedule", "place jobs on devices, from files of times and devices, "
                    "in simulation", _schedule)
    option(verb, "--times", "CSV: job_id and one column of seconds per device type", a_path,
           required=True)
    option(verb, "--devices", "CSV: device, type, count; memory, cores, watts, price", a_path,
           required=True)
    option(verb, "--jobs", "CSV: job_id and arrival_s, deadline_s, memory_mb, cpu_cores, "
           "workload_id, devices", a_path)
    option(verb, "--actual", "CSV like --times: actual times; policies see --times", a_path)
    option(verb, "--energy", "CSV like --times, in joules, and source", a_path)
    option(verb, "--high", "CSV like --times: high ends of their 90 %% ranges", a_path)
    option(verb, "--time-limit-risk", "with --high: probability of overrunning a time limit",
           number(0, 1, above=True), 0.05, metavar="RISK")
    option(verb, "--policy", "hybrid, or a baseline; an unknown name lists all", default="hybrid")
    option(verb, "--objective", "for hybrid: makespan, mean_jct, p99_jct, deadline, energy, price",
           default="makespan")
    option(verb, "--output", "write the schedule to this new CSV", new_file)
    option(verb, "--trace", "write a Chrome trace to this new JSON", new_file)
    flag(verb, "--json", "print the figures as one object")

    verb = add_verb(verbs, "run-jobs", "run jobs on this machine or on a cluster; a second call "
                    "resumes", _run_jobs, epilog="A killed job runs again: its effects other than "
                    "its result happen at least once.")
    option(verb, "jobs", "CSV: job_id, and workload_id with steps or notebook (a path from this "
           "file or the repository) with parameters (JSON); arrival_s, memory_mb, ...", a_path)
    option(verb, "--policy", "as in schedule", default="hybrid")
    option(verb, "--objective", "as in schedule", default="makespan")
    option(verb, "--slots", "equal CPU slots per node (default: one per core, at most 16)",
           whole(1), 0)
    option(verb, "--engine", "worker processes on this machine, or a Ray cluster",
           default="local", choices=("local", "ray"))
    option(verb, "--address", "head of the Ray cluster (default: this machine's)",
           metavar="HOST:PORT")
    option(verb, "--output", "folder for queue and record alone (default: data/schedule/<jobs>)",
           a_path)
