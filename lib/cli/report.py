"""The verb ``run``: notebooks, their key numbers, and the report. Imports nothing heavy."""

import argparse
from pathlib import Path

from lib import files, locks, paths
from lib.cli.options import add_verb, flag, names, note, option, parameters
from lib.errors import InputError, choices


def _devices(wanted: list[str], source: str, reference: str) -> list[str]:
    """Return the devices to run on: of this machine, or in a replay those of ``reference``."""
    if source == "measure":
        from lib.measure import machine

        return machine.several(",".join(wanted))
    from lib.measure import archive

    measured = sorted(set(archive.runs("replay", reference)["backend"]))
    if wanted in (["all"], ["auto"]):
        return measured
    if unknown := sorted(set(wanted) - set(measured)):
        raise InputError(f"the reference has no device {choices(unknown)}; it has: "
                         f"{choices(measured)} (or all)")
    return wanted


def _run(options: argparse.Namespace) -> bool:
    from lib import report
    from lib.measure.worker import usable_cores

    if options.page:
        if options.names or options.parameters or options.accept or options.dry_run:
            raise InputError("--page shows all that was executed before: leave out notebooks, -p, "
                             "--accept and --dry-run")
        return _written(paths.EXECUTED)
    jobs, folder = _planned(options)
    if options.dry_run:
        print("\n".join(job.command for job in jobs))
        return False
    replayed = options.check or options.source == "replay"
    targets = [folder / f"{job.stem}.ipynb" for job in jobs]
    with locks.writers(targets, 0.0):  # until the page is built of them
        output = paths.REPORT / "replayed" if options.check else None
        outcomes = report.run(jobs, folder, output, usable_cores() if replayed else 1)
        failed = any(outcome.status != "ok" for outcome in outcomes)
        if options.check:
            return _compared(folder, outcomes, options.accept) or failed
        if options.report:
            failed |= _written(folder)
    return failed


def _planned(options: argparse.Namespace) -> tuple[list, Path]:
    """Return the jobs of the chosen notebooks and the folder of their results."""
    from lib import report
    from lib.config import definitions

    extra, source, folder = dict(options.parameters), options.source, paths.EXECUTED
    if options.accept and not options.check:
        raise InputError("--accept goes with --check")
    if options.check:
        if options.full or extra:
            raise InputError("--check compares the committed parameters: leave out --full and -p")
        source, folder, options.devices = "replay", paths.REPORT / "replayed/executed", ["all"]
    workloads = options.workloads
    if workloads == ["all"]:
        workloads = list(definitions.workloads())
    devices = _devices(options.devices, source, extra.get("reference", ""))
    shown = folder.relative_to(paths.ROOT) if folder.is_relative_to(paths.ROOT) else folder
    jobs = report.plan(options.full, options.names, workloads, devices, extra,
                       {"source": source, "executed": str(shown)})
    return jobs, folder


def _compared(folder: Path, outcomes: list, accept: bool) -> bool:
    """Print which key numbers moved, or accept them; return whether there are any."""
    from lib import report

    if accept:
        path = report.accept(folder, outcomes)
        print(f"accepted the key numbers of {len(outcomes)} notebooks into {path}")
        return False
    lines = report.moved(folder, outcomes)
    if len(outcomes) == 1 and not lines:
        for key, number in report.keys(folder, outcomes[0].stem).items():
            value = number["value"]
            shown = value if isinstance(value, str) else f"{value:.4g}"
            print(f"  {key}: {shown} {number['unit']}")
    if not lines:
        print(f"reproduced: the key numbers of {len(outcomes)} replayed notebooks did not move")
    for line in lines:
        print(line)
    return bool(lines)


def _written(executed: Path) -> bool:
    """Write report/index.html of the executed notebooks; return whether it has problems."""
    from lib import report

    html, problems = report.page(executed)
    path = files.replace(paths.REPORT / "index.html", html.encode())
    for line in problems:
        note(f"failed: {line}")
    print(path)
    return bool(problems)


def add(verbs) -> None:
    """Add the verb."""
    verb = add_verb(verbs, "run", "run notebooks for the report, or check that the reference data "
                    "reproduce", _run)
    option(verb, "names", "notebooks by name or number (default: all)", nargs="*")
    flag(verb, "--full", "the full parameter sets instead of the quick ones")
    option(verb, "--workloads", "workload ids, or all (default)", names, ["all"], metavar="W1,W5")
    option(verb, "--devices", "device ids, all, or auto (default)", names, ["auto"],
           metavar="cpu,cuda:0")
    option(verb, "--source", "measure here, or replay the reference", default="measure",
           choices=("measure", "replay"))
    parameters(verb, "a parameter for every chosen notebook that has it")
    group = verb.add_mutually_exclusive_group()
    flag(group, "--report", "then assemble the page, report/index.html")
    flag(group, "--page", "run nothing: assemble the page of what was executed before")
    flag(group, "--check", "replay all and compare the key numbers with the committed ones")
    flag(verb, "--accept", "with --check: make the new key numbers the committed ones")
    flag(verb, "--dry-run", "print the papermill lines and run nothing")
