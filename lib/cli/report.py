"""The verb ``run``: it runs notebooks, checks their numbers and assembles the page. Imports nothing heavy."""

import argparse
from pathlib import Path

from lib import files, locks, paths
from lib.cli.options import a_path, add_verb, assignments, flag, names, new_file, note, option, parameters
from lib.errors import InputError, choices


def _devices(names: list[str], source: str, reference: str) -> list[str]:
    """Return the device ids to run over; ``all`` are those of this machine or, in a replay, of ``reference`` (empty: of all).

    Raises InputError for one that is not there, or is named twice.
    """
    if source == "replay":
        from lib.measure import archive

        measured = sorted(set(archive.runs("replay", reference)["backend"]))
        if names in (["all"], ["auto"]):
            return measured
        if unknown := set(names) - set(measured):
            raise InputError(f"the reference has no device {choices(sorted(unknown))}; it has: {choices(measured)} (or all)")
        return names
    from lib.measure import machine

    return machine.several(",".join(names))


def _run(options: argparse.Namespace) -> bool:
    if options.page:
        return bool(_written(options.executed or paths.EXECUTED, options.out))
    if options.executed or options.out:
        raise InputError("--executed and --out go with --page")
    from lib import report
    from lib.config import definitions
    from lib.measure.worker import usable_cores

    extra = assignments(options.parameter)
    if options.accept and not options.check:
        raise InputError("--accept goes with --check")
    if options.check and (options.full or extra):
        raise InputError("--check compares the committed parameters: leave out --full and -p")
    source = "replay" if options.check else options.source
    workloads = list(definitions.workloads()) if options.workloads == ["all"] else options.workloads
    devices = _devices(["all"] if options.check else options.devices, source, extra.get("reference", ""))
    folder = paths.REPORT / "replayed" / "executed" if options.check else paths.EXECUTED
    shown = folder.relative_to(paths.ROOT) if folder.is_relative_to(paths.ROOT) else folder
    jobs = report.plan(options.full, options.names, workloads, devices, extra, {"source": source, "executed": str(shown)})
    if options.dry_run:
        print("\n".join(job.command for job in jobs))
        return False
    with locks.writers((folder / f"{job.stem}.ipynb" for job in jobs), 0.0):  # until the page is built of them
        outcomes = report.run(jobs, folder, paths.REPORT / "replayed" if options.check else None,
                              usable_cores() if source == "replay" else 1)
        failed = any(outcome.status != "ok" for outcome in outcomes)
        if not options.check:
            return failed | (options.report and bool(_written(folder)))
        if options.accept:
            print(f"accepted the key numbers of {len(outcomes)} notebooks into {report.accept(folder, outcomes)}")
            return failed
        lines = report.moved(folder, outcomes)
        if len(outcomes) == 1 and not lines:
            for key, number in report.keys(folder, outcomes[0].stem).items():
                print(f"  {key}: {number['value']} {number['unit']}" if isinstance(number["value"], str)
                      else f"  {key}: {number['value']:.4g} {number['unit']}")
        print("\n".join(lines) if lines else f"reproduced: the key numbers of {len(outcomes)} replayed notebooks did not move")
        return bool(lines)


def _written(executed: Path, out: Path | None = None) -> list[str]:
    """Join the executed notebooks and write the page: a new file or, by default, report/index.html; return its problems."""
    from lib import report

    html, problems = report.page(executed)
    path = files.create(out, html.encode()) if out else files.replace(paths.REPORT / "index.html", html.encode())
    for line in problems:
        note(f"failed: {line}")
    print(path)
    return problems


def add(verbs) -> None:
    """Add the verb that runs notebooks and assembles the page."""
    add_verb(verbs, _run, "run", "run notebooks for the report, or check that the reference data reproduce",
             option("names", "notebooks by name or number (default: all in params/report.yaml)", nargs="*"),
             flag("--full", "the full parameter sets instead of the quick ones"),
             option("--workloads", "workload ids, or all (default)", names, ["all"], metavar="W1,W5"),
             option("--devices", "device ids, all, or auto (default)", names, ["auto"], metavar="cpu,cuda:0"),
             option("--source", "measure here, or replay the reference", default="measure", choices=("measure", "replay")),
             parameters("a parameter for every chosen notebook that has it"),
             [flag("--report", "then assemble the page, report/index.html"),
              flag("--page", "run nothing: assemble the page of what was executed before"),
              flag("--check", "replay all and compare the key numbers with the committed ones")],
             option("--executed", "with --page: folder of executed notebooks (default: report/executed)", a_path),
             option("--out", "with --page: the page, a new file (default: report/index.html, replaced)", new_file),
             flag("--accept", "with --check: make the new key numbers the committed ones"),
             flag("--dry-run", "print the papermill lines and run nothing"))
