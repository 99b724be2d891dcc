"""The verbs of operator sweeps: ``sweeps measure``, ``sweeps merge``. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, assignments, folder_name, note, option, parameters, verdicts


def _measure(options: argparse.Namespace) -> bool:
    """Measure a sweep; the exit status is 1 when a device failed while others measured."""
    from lib import store
    from lib.config import base
    from lib.config.notebooks import SweepParams
    from lib.measure.operators import aggregate, export, sweep

    p = base.build(SweepParams, {"device": options.device, **assignments(options.parameter)}, "sweeps measure")
    folder = sweep.measure_sweep(p)
    table = aggregate.read(folder).table
    good = table.query("status == 'ok'")
    print(f"{folder}: {len(table)} points, {len(table) - len(good)} of them not measured; {verdicts(good)}")
    failures = store.read_json(folder / "sweep.meta.json").get("failures", {})
    if emptiness := export.emptiness(table, folder):
        note(emptiness)
    for reason in failures.values():
        note(f"failed: {reason}")
    return bool(failures)


def _merge(options: argparse.Namespace) -> bool:
    """Merge shards; the exit status is 1 when points of them are missing."""
    from lib.measure.operators import aggregate, shards

    folder, missing = shards.merge(options.folders, options.name)
    print(f"{folder}: {len(aggregate.read(folder).table)} points of {len(options.folders)} shards")
    for shard, count in missing.items():
        note(f"shard {shard} misses {count} points: repeat the command that measured it to resume")
    return bool(missing)


def add(verbs) -> None:
    """Add the verbs of operator sweeps."""
    verb = verbs.add_parser("sweeps", help="measure operators on the devices of this machine; merge shards measured apart")
    actions = verb.add_subparsers(dest="action", required=True, metavar="action")
    add_verb(actions, _measure, "measure", "measure a sweep as 03_sweep does; the same command resumes a stopped sweep",
             option("--device", "device ids, auto, or all (default): the CPU, then the GPUs together", default="all"),
             parameters("a parameter of 03_sweep, such as op all, budget_s 600, grid original_linear, shard 0/8"))
    add_verb(actions, _merge, "merge", "merge shards into one sweep in data/sweeps/",
             option("folders", "the folder of each shard", a_path, nargs="+", metavar="DIR"),
             option("--name", "folder in data/sweeps/ (default: merged)", folder_name, "merged"))
