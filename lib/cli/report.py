"""The verbs that run notebooks and assemble the page: ``run``, ``report``. Imports nothing heavy."""

import argparse
import os
import sys
from pathlib import Path

from lib import paths
from lib.cli.options import assignments, names


def _devices(wanted: list[str], source: str) -> list[str]:
    """Return the device ids to run over; ``all`` are those of this machine or, in a replay, of the reference."""
    if source == "replay" and wanted in (["all"], ["auto"]):
        from lib.measure import archive

        return sorted(set(archive.runs("replay")["backend"]))
    if source == "replay":
        return wanted
    from lib.measure import machine

    return machine.several(",".join(wanted))


def _workloads(wanted: list[str]) -> list[str]:
    from lib.config import definitions

    return list(definitions.workloads()) if wanted == ["all"] else wanted


def _run(options: argparse.Namespace) -> int:
    from lib.report import runner

    source = "replay" if options.check else options.source
    jobs = runner.plan(options.full, options.names, _workloads(options.workloads),
                    _devices(["all"] if options.check else options.devices, source),
                    {**assignments(options.parameter), "source": source})
    folder = paths.REPORT / "replayed" / "executed" if options.check else paths.EXECUTED
    if options.dry_run:
        print("\n".join(job.command for job in jobs))
        return 0
    if not options.check:
        outcomes = runner.run(jobs, folder, parallel=(os.cpu_count() or 1) if source == "replay" else 1)
        return int(any(outcome.status != "ok" for outcome in outcomes))
    outcomes = runner.run(jobs, folder, paths.REPORT / "replayed", parallel=os.cpu_count() or 1)
    if options.accept:
        print(f"accepted the key numbers of {len(outcomes)} notebooks into {runner.accept(folder, outcomes)}")
        return int(any(outcome.status != "ok" for outcome in outcomes))
    lines = runner.moved(folder, outcomes)
    print("\n".join(lines) if lines else f"reproduced: the key numbers of {len(outcomes)} replayed notebooks did not move")
    return int(bool(lines))


def _report(options: argparse.Namespace) -> int:
    from lib.report import page

    path, problems = page.build(options.executed or paths.EXECUTED, options.out or paths.REPORT / "index.html", options.figure)
    for line in problems:
        print(f"failed: {line}", file=sys.stderr)
    print(path)
    return int(bool(problems))


def add(verbs) -> None:
    """Add the verbs that run notebooks and assemble the page."""
    verb = verbs.add_parser("run", help="run notebooks for the report, or check that the reference data reproduce")
    verb.add_argument("names", nargs="*", help="notebooks by name or number (default: all in params/report.yaml)")
    verb.add_argument("--full", action="store_true", help="the full parameter sets instead of the quick ones")
    verb.add_argument("--workloads", type=names, default="all", metavar="W1,W5", help="workload ids, or all (default)")
    verb.add_argument("--devices", type=names, default="auto", metavar="cpu,cuda:0", help="device ids, all, or auto (default)")
    verb.add_argument("--source", default="measure", choices=("measure", "replay"),
                      help="measure here, or replay the reference")
    verb.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                      help="a parameter for every chosen notebook that has it")
    verb.add_argument("--check", action="store_true", help="replay all and compare the key numbers with the committed ones")
    verb.add_argument("--accept", action="store_true", help="with --check: make the new key numbers the committed ones")
    verb.add_argument("--dry-run", action="store_true", help="print the papermill lines and run nothing")
    verb.set_defaults(call=_run)

    verb = verbs.add_parser("report", help="assemble report/index.html from the executed notebooks")
    verb.add_argument("--executed", type=Path, help="folder of executed notebooks (default: report/executed)")
    verb.add_argument("--out", type=Path, help="the page to write (default: report/index.html)")
    verb.add_argument("--figure", type=Path, help="the summary figure to write, SVG (default: summary.svg beside the page)")
    verb.set_defaults(call=_report)
