"""The verbs that measure and compare: ``machine``, ``networks``, ``matrix``, ``compare``. Imports nothing heavy."""

import argparse
import time

from lib import files
from lib.cli.options import (
    a_path,
    add_flag,
    add_parameters,
    add_verb,
    assignments,
    folder_name,
    names,
    new_file,
    number,
    verdicts,
    whole,
)


def _machine(_: argparse.Namespace) -> None:
    from lib.measure import load, machine
    from lib.measure.energy.meters import open_meter

    facts = machine.identity()
    watch = load.LoadWatch()
    time.sleep(0.5)
    now = watch.reading()
    for name in ("machine", "hardware_id", "software_id"):
        print(f"{name:>18}  {facts[name]}")
    for name, value in [*facts["hardware"].items(), *facts["software"].items(), ("devices", machine.devices())]:
        print(f"{name:>18}  {value}")
    if cards := machine.overlooked(machine.devices()):
        print(f"{'cards':>18}  {cards}")
    print(f"{'other processes':>18}  {now.other_cores:.2f} cores")
    for device in machine.devices():
        meter = open_meter(device)
        print(f"{f'power of {device}':>18}  {': '.join(filter(None, (meter.name, meter.reason)))}")


def _matrix(options: argparse.Namespace) -> bool:
    from lib import store
    from lib.config import definitions
    from lib.measure import archive
    from lib.measure.training import environment, matrix, matrix_tables

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
        print("", matrix.markdown(matrix.throughput(table)), "", *matrix_tables.write(runs[of_environment]), sep="\n")
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
    from lib import paths, store
    from lib.config import definitions
    from lib.measure import machine
    from lib.measure.networks import campaign

    plan = definitions.load_campaign(options.plan) if options.plan else definitions.load_campaign()
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
    failed = table[table["status"] != "ok"]
    for row in failed.itertuples():
        print(f"failed: {row.network} {row.mode} b{row.batch_size} {row.runtime}: {row.reason}")
    if store.git_state()["dirty"]:
        print("the checkout has uncommitted changes: as a reference it should be measured from a clean commit")
    return len(failed) > 0


def _compare(options: argparse.Namespace) -> bool:
    """Compare two measurements; the exit status is 1 when B is slower, for CI."""
    from lib import store
    from lib.measure import compare

    difference = compare.difference(str(options.a), str(options.b), options.threshold)
    if options.out:
        files.create(options.out, store.encoded(difference.pairs, ".csv"))
    print(compare.words(difference))
    return difference.word == "slower"


def add(verbs) -> None:
    """Add the verbs that measure and compare."""
    add_verb(verbs, _machine, "machine", "what this machine is: inventory, ids, devices, load")
    for add_options in (_add_compare, _add_networks, _add_matrix):
        add_options(verbs)


def _add_compare(verbs) -> None:
    verb = add_verb(verbs, _compare, "compare",
                    "two measured runs, sweeps or matrix environments: is B faster, slower or the same")
    verb.add_argument("a", type=a_path, help="a run id, a sweep, an environment of the matrix, or a file or folder of one")
    verb.add_argument("b", type=a_path)
    verb.add_argument("--threshold", type=number(most=0.99), default=0.03,
                      help="differences up to this share are the same (default 0.03, which is 3 %%)")
    verb.add_argument("--out", type=new_file, help="write every pair to this CSV")


def _add_networks(verbs) -> None:
    verb = add_verb(verbs, _networks, "networks", "measure whole networks, one process each, as params/networks.yaml says; a "
                    "second call resumes")
    verb.add_argument("--device", default="cpu", help="device id (default cpu)")
    verb.add_argument("--networks", type=names, default=(), metavar="resnet50,W1,...",
                      help="some of its networks (default: all)")
    verb.add_argument("--plan", type=a_path, help="file to use instead of params/networks.yaml")
    verb.add_argument("--rounds", type=whole(1, 1000), default=0, help="visits per case (default: as in the file)")
    verb.add_argument("--case-s", type=number(0, 1e5, above=True), default=0.0,
                      help="seconds per case and round (default: as in the file)")
    verb.add_argument("--energy-s", type=number(0, 1e5),
                      help="seconds of repeated passes from which energy is read, 0 for none (default: as in the file, or 2)")
    verb.add_argument("--budget-s", type=number(), default=0.0,
                      help="start no process after so many seconds (default: no limit)")
    verb.add_argument("--name", type=folder_name, default="networks",
                      help="folder in data/networks/ that keeps the visits and the table")
    add_flag(verb, "--dry-run", "print the cases")


def _add_matrix(verbs) -> None:
    verb = add_verb(verbs, _matrix, "matrix", "measure the run matrix of params/matrix.yaml; a second call resumes")
    verb.add_argument("--device", default="auto", help="device id, or auto (default)")
    verb.add_argument("--cells", type=names, default=(), metavar="resnet50/b16/fp32,...",
                      help="some cells by name (default: all)")
    verb.add_argument("--repeats", type=whole(1, 1000), default=0, help="runs per cell (default: as in params/matrix.yaml)")
    verb.add_argument("--budget-s", type=number(), default=0.0,
                      help="start no run after this many seconds (default: no limit)")
    add_parameters(verb, "a parameter of 02_profile for every run")
    verb.add_argument("--notes", default="", help="notes on the machine, for the record of the environment")
    add_flag(verb, "--nsight", "count the work of each cell's kernels (Nsight Compute), time none")
    add_flag(verb, "--dry-run", "print the cells and how many of their runs are there")
