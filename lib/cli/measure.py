"""The verbs ``measure`` (whole networks, the run matrix) and ``compare``. Imports nothing heavy."""

import argparse

from lib import paths
from lib.cli.options import (
    a_path,
    add_verb,
    flag,
    folder_name,
    names,
    note,
    number,
    option,
    parameters,
    whole,
)


def _matrix(options: argparse.Namespace) -> bool:
    from lib import store
    from lib.config import definitions
    from lib.measure import archive
    from lib.measure.training import environment, matrix, throughput

    plan = definitions.load_matrix()
    cells = matrix.cells(plan, options.device, options.cells, dict(options.parameters))
    repeats, done = options.repeats or plan.repeats, matrix.repeats_done(cells)
    if options.dry_run:
        for cell in cells:
            there = min(done[cell.label], repeats)
            print(f"{cell.label}: {there} of {repeats} runs are there")
        return False

    def report(row: dict) -> None:
        rate = f"{row['images_per_sec']:,.1f} images/s " if row["run_id"] else ""
        print(f"{row['status']:>6}  {row['label']} #{row['repeat']}: {rate}{row['reason']}",
              flush=True)

    device, env = cells[0].params.device, cells[0].label.partition("/")[0]
    started_utc, clocks = store.utc_now(), environment.clocks()
    rows = matrix.run_matrix(cells, repeats, options.budget_s, report)
    runs = archive.runs("measure")
    table = throughput.throughput(runs[runs["label"].isin([cell.label for cell in cells])])
    if len(table):
        written = throughput.write(runs[runs["label"].str.startswith(f"{env}/")])
        print("", table.to_string(index=False), "", *written, sep="\n")
    if rows.empty:
        return False
    print(environment.add(env, device, started_utc, clocks, plan.notes))
    return (rows["status"] == "failed").any()


def _networks(options: argparse.Namespace) -> bool:
    """Measure whole networks; return whether one of them failed."""
    from lib.config import definitions
    from lib.errors import beginning
    from lib.measure import machine
    from lib.measure.networks import campaign

    plan = definitions.load_campaign(options.plan)
    device = options.device if options.dry_run else str(machine.device(options.device))
    with beginning(str(options.plan)):
        planned = campaign.cases(plan, options.models)
    cases = campaign.on_device(planned, device)
    if left_out := len({config for config, _ in planned} - {config for config, _ in cases}):
        note(f"cases left out that only a CPU can run, by runtime, int8, threads or processes: "
             f"{left_out:,}")
    if options.dry_run:
        print("\n".join(f"{config.label}, memory {memory}" for config, memory in cases))
        return False
    rounds, folder = options.rounds or plan.rounds, paths.NETWORKS / options.name
    energy_s = plan.energy_s if options.energy_s is None else options.energy_s
    table, facts = campaign.measure(cases, device, rounds, plan.case_s, options.budget_s,
                                    folder / "visits.jsonl", energy_s)
    path = campaign.write(table, folder / "networks.parquet", **facts, rounds=rounds,
                          cases=len(cases))
    verdicts = [f"{count} {name}" for name, count in table["verdict"].value_counts().items()]
    print(f"{path}: {len(table)} of {len(cases)} cases; {', '.join(verdicts)}")
    failed = table[table["status"] != "ok"]
    for row in failed.itertuples():
        print(f"failed: {row.network} {row.mode} b{row.batch_size} {row.runtime}: {row.reason}")
    return len(failed) > 0


def _compare(options: argparse.Namespace) -> bool:
    """Compare two measurements; return whether B is slower, for CI."""
    from lib.measure import compare

    text, is_slower = compare.compare(str(options.a), str(options.b), options.threshold)
    print(text)
    return is_slower


def add(verbs) -> None:
    """Add the verbs."""
    measure = verbs.add_parser("measure", description="many runs on this machine; a second call "
                               "resumes: networks, matrix")
    actions = measure.add_subparsers(dest="action", required=True, metavar="action")
    _add_networks(actions)
    _add_matrix(actions)
    verb = add_verb(verbs, "compare", "two measured sweeps or matrix environments: is B "
                    "faster, slower or the same", _compare)
    option(verb, "a", "a sweep, an environment, or a file or folder of one", a_path)
    option(verb, "b", "another of the same kind", a_path)
    option(verb, "--threshold", "share up to which times are the same", number(most=0.99), 0.03)


def _add_networks(actions) -> None:
    verb = add_verb(actions, "networks", "whole networks, one process each", _networks)
    option(verb, "--device", "device id", default="cpu")
    option(verb, "--models", "some of its networks (default: all)", names, (), metavar="NAME,...")
    option(verb, "--plan", "which networks are measured, and how long", a_path,
           paths.PARAMS / "networks.yaml")
    option(verb, "--rounds", "visits per case (default: the plan's)", whole(1, 1000))
    option(verb, "--energy-s", "seconds per case for energy (default: the plan's)", number(0, 1e5))
    option(verb, "--budget-s", "start no process after this time (default: no limit)", number(), 0.0)
    option(verb, "--name", "folder in data/networks/ of the results", folder_name, "networks")
    flag(verb, "--dry-run", "print the cases")


def _add_matrix(actions) -> None:
    verb = add_verb(actions, "matrix", "the run matrix of params/matrix.yaml: models, batch "
                    "sizes, precisions, optimizers", _matrix)
    option(verb, "--device", "device id, or auto", default="auto")
    option(verb, "--cells", "some cells (default: all)", names, (), metavar="resnet50/b16/fp32,...")
    option(verb, "--repeats", "runs per cell (default: as in params/matrix.yaml)", whole(1, 1000))
    option(verb, "--budget-s", "start no run after this time (default: no limit)", number(), 0.0)
    parameters(verb, "a parameter of 02_profile for every run")
    flag(verb, "--dry-run", "print the cells and how many of their runs are there")
