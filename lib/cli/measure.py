"""The verbs ``measure`` (campaigns of networks, the run matrix) and ``compare``. Imports nothing heavy."""

import argparse

from lib import paths
from lib.cli.options import (
    a_path,
    add_verb,
    assignments,
    flag,
    folder_name,
    names,
    number,
    option,
    parameters,
    verdicts,
    whole,
)


def _matrix(options: argparse.Namespace) -> bool:
    from lib import store
    from lib.config import definitions
    from lib.measure import archive
    from lib.measure.training import environment, matrix, throughput

    plan = definitions.load_matrix()
    cells = matrix.cells(plan, options.device, options.cells, assignments(options.parameter))
    repeats, done = options.repeats or plan.repeats, matrix.repeats_done(cells)
    if options.dry_run:
        print("\n".join(f"{cell.label}: {min(done[cell.label], repeats)} of {repeats} runs are there" for cell in cells))
        return False
    if options.nsight:
        return _counters(cells, assignments(options.parameter))
    device, env = cells[0].params.device, cells[0].label.partition("/")[0]
    started_utc, clocks = store.utc_now(), environment.clocks(device)

    def report(row: dict) -> None:
        what = f"{row['images_per_sec']:,.1f} images/s " if row["run_id"] else ""
        print(f"{row['status']:>6}  {row['label']} #{row['repeat']}: {what}{row['reason']}", flush=True)

    rows = matrix.run_matrix(cells, repeats, options.budget_s, report=report)
    runs = archive.runs("measure")
    table = runs[runs["label"].isin([cell.label for cell in cells])]
    if len(table):
        of_environment = runs["label"].str.startswith(f"{env}/")
        print("", throughput.throughput(table).to_string(index=False), "", *throughput.write(runs[of_environment]), sep="\n")
    if len(rows):
        print(environment.add(env, device, started_utc, clocks, options.notes or plan.notes))
    return "failed" in set(rows.get("status", ()))


def _counters(cells: list, parameters: dict[str, str]) -> bool:
    """Collect the counters of cells; the exit status is 1 when those of one could not be had."""
    from lib.errors import InputError
    from lib.measure.training import counters
    from lib.predict.analytic import nsight

    failed = False
    for cell in cells:
        try:
            path = counters.collect(cell, parameters)
            counted = nsight.read(path)
            print(path, *([f"WARNING: {counted.warning}"] if counted.warning else []), sep="\n", flush=True)
        except InputError as error:
            print(f"failed  {error}", flush=True)
            failed = True
    return failed


def _networks(options: argparse.Namespace) -> bool:
    """Measure whole networks; the exit status is 1 when one of them failed."""
    from lib import store
    from lib.config import definitions
    from lib.measure import machine
    from lib.measure.networks import campaign

    plan = definitions.load_campaign(options.plan)
    device = options.device if options.dry_run else str(machine.device(options.device))
    wanted, rounds = campaign.on_device(campaign.cases(plan, options.networks), device), options.rounds or plan.rounds
    if options.dry_run:
        print("\n".join(f"{case.words}, memory {memory}" for case, memory in wanted))
        return False
    folder = paths.NETWORKS / options.name
    table, facts = campaign.measure(wanted, device, rounds, options.case_s or plan.case_s, options.budget_s,
                                    folder / "visits.jsonl", plan.energy_s if options.energy_s is None else options.energy_s)
    path = campaign.write(table, folder / "networks.parquet", **facts, rounds=rounds, cases=len(wanted))
    print(f"{path}: {len(table)} of {len(wanted)} cases; {verdicts(table)}")
    failed = table.query("status != 'ok'")
    for row in failed.itertuples():
        print(f"failed: {row.network} {row.mode} b{row.batch_size} {row.runtime}: {row.reason}")
    if store.git_state()["dirty"]:
        print("the checkout has uncommitted changes: as a reference it should be measured from a clean commit")
    return len(failed) > 0


def _compare(options: argparse.Namespace) -> bool:
    """Compare two measurements; the exit status is 1 when B is slower, for CI."""
    from lib.measure import compare

    text, is_slower = compare.compare(str(options.a), str(options.b), options.threshold)
    print(text)
    return is_slower


def add(verbs) -> None:
    """Add the verbs that measure and compare."""
    measure = verbs.add_parser("measure", description="many runs on this machine; a second call resumes: networks, matrix")
    actions = measure.add_subparsers(dest="action", required=True, metavar="action")
    add_verb(actions, _networks, "networks", "whole networks, one process each, as params/networks.yaml says",
             option("--device", "device id (default cpu)", default="cpu"),
             option("--networks", "some of its networks (default: all)", names, (), metavar="resnet50,W1,..."),
             option("--plan", "which networks are measured, and how long", a_path, paths.PARAMS / "networks.yaml"),
             option("--rounds", "visits per case (default: as in the file)", whole(1, 1000), 0),
             option("--case-s", "seconds per case and round (default: as in the file)", number(0, 1e5, above=True), 0.0),
             option("--energy-s",
                    "seconds of repeated passes from which energy is read, 0 for none (default: as in the file, or 2)",
                    number(0, 1e5)),
             option("--budget-s", "start no process after so many seconds (default: no limit)", number(), 0.0),
             option("--name", "folder in data/networks/ that keeps the visits and the table", folder_name, "networks"),
             flag("--dry-run", "print the cases"))
    add_verb(actions, _matrix, "matrix", "the run matrix of params/matrix.yaml: models, batch sizes, precisions, optimizers",
             option("--device", "device id, or auto (default)", default="auto"),
             option("--cells", "some cells by name (default: all)", names, (), metavar="resnet50/b16/fp32,..."),
             option("--repeats", "runs per cell (default: as in params/matrix.yaml)", whole(1, 1000), 0),
             option("--budget-s", "start no run after this many seconds (default: no limit)", number(), 0.0),
             parameters("a parameter of 02_profile for every run"),
             option("--notes", "notes on the machine, for the record of the environment", default=""),
             flag("--nsight", "count the work of each cell's kernels (Nsight Compute), time none"),
             flag("--dry-run", "print the cells and how many of their runs are there"))
    add_verb(verbs, _compare, "compare", "two measured runs, sweeps or matrix environments: is B faster, slower or the same",
             option("a", "a run id, a sweep, an environment of the matrix, or a file or folder of one", a_path),
             option("b", read=a_path),
             option("--threshold", "differences up to this share are the same (default 0.03, which is 3 %%)", number(most=0.99),
                    0.03))
