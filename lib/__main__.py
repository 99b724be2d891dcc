"""The command line: ``python -m lib <verb>``, each verb a thin call into a room."""

import argparse
import gc
import os
import sys
from pathlib import Path

from lib import paths
from lib.errors import InputError
from lib.schedule import verbs as placing


def _machine(_: argparse.Namespace) -> int:
    from lib.measure import load, machine

    facts = machine.identity()
    with load.LoadWatch() as watch:
        import time

        time.sleep(0.5)
        now = watch.reading()
    for name in ("machine", "hardware_id", "software_id"):
        print(f"{name:>18}  {facts[name]}")
    for name, value in [*facts["hardware"].items(), *facts["software"].items(), ("devices", machine.devices())]:
        print(f"{name:>18}  {value}")
    print(f"{'other processes':>18}  {now.other_cores:.2f} cores")
    return 0


def _assignments(pairs: list[list[str]]) -> dict[str, str]:
    return dict(pairs)


def _devices(wanted: str, source: str) -> list[str]:
    """Return the device ids to run over; ``all`` are those of this machine or, in a replay, of the reference."""
    if wanted not in ("all", "auto"):
        return wanted.split(",")
    if source == "replay":
        from lib.measure import archive

        return sorted(set(archive.runs("replay")["backend"]))
    from lib.measure import machine

    return machine.devices() if wanted == "all" else [str(machine.device("auto"))]


def _workloads(wanted: str) -> list[str]:
    from lib import params

    return list(params.workloads()) if wanted == "all" else wanted.split(",")


def _run(options: argparse.Namespace) -> int:
    from lib.book import run

    source = "replay" if options.check else options.source
    jobs = run.plan(options.full, options.names, _workloads(options.workloads),
                    _devices("all" if options.check else options.devices, source),
                    {**_assignments(options.parameter), "source": source})
    folder = paths.REPORT / "replayed" / "executed" if options.check else paths.EXECUTED
    if options.dry_run:
        print("\n".join(job.command for job in jobs))
        return 0
    if not options.check:
        outcomes = run.run(jobs, folder, parallel=(os.cpu_count() or 1) if source == "replay" else 1)
        return int(any(outcome.status != "ok" for outcome in outcomes))
    outcomes = run.run(jobs, folder, paths.REPORT / "replayed", parallel=os.cpu_count() or 1)
    if options.accept:
        print(f"accepted the key numbers of {len(outcomes)} notebooks into {run.accept(folder, outcomes)}")
        return int(any(outcome.status != "ok" for outcome in outcomes))
    lines = run.moved(folder, outcomes)
    print("\n".join(lines) if lines else f"reproduced: the key numbers of {len(outcomes)} replayed notebooks did not move")
    return int(bool(lines))


def _report(options: argparse.Namespace) -> int:
    from lib.book import report

    page, problems = report.build(options.executed or paths.EXECUTED, options.out or paths.REPORT / "index.html")
    for line in problems:
        print(f"failed: {line}", file=sys.stderr)
    print(page)
    return int(bool(problems))


def _data(options: argparse.Namespace) -> int:
    from lib import params
    from lib.work import datasets

    if options.action == "dictionary":
        from lib import tables

        print(tables.dictionary())
        return 0
    wanted = options.names or sorted({f"{w.dataset}" for w in params.workloads().values() if w.dataset != "imagefolder"})
    sizes = {options.size} if options.size else None
    failed = False
    for name in wanted:
        used = {datasets.native_size(w.dataset, w.size, "native") for w in params.workloads().values() if w.dataset == name}
        for size in sorted(sizes or used or {28}):
            path = paths.MEDMNIST / datasets.file_name(name, size)
            try:
                if options.action == "fetch":
                    datasets.fetch(name, size)
                counts = datasets.check_file(path, name, size)
                official = "official" if datasets.is_official(path, name, size) else "NOT the official file (MD5 differs)"
                print(f"{path}: {counts}, {official}")
            except InputError as error:
                failed = True
                print(f"error: {error}", file=sys.stderr)
    return int(failed)


def _compare(options: argparse.Namespace) -> int:
    """Compare two measurements; the exit status is 1 when B is slower, for CI."""
    from lib.measure import difference

    found = difference.difference(options.a, options.b, options.threshold)
    if options.out:
        found.pairs.to_csv(options.out, index=False)
    print(difference.words(found))
    return int(found.word == "slower")


def _matrix(options: argparse.Namespace) -> int:
    from lib import definitions
    from lib.measure import archive, matrix

    plan = definitions.load_matrix()
    found = matrix.cells(plan, options.device, options.cells, _assignments(options.parameter))
    repeats, done = options.repeats or plan.repeats, matrix.repeats_done(found)
    if options.dry_run:
        print("\n".join(f"{cell.label}: {min(done[cell.label], repeats)} of {repeats} runs are there" for cell in found))
        return 0

    def tell(row: dict) -> None:
        what = f"{row['images_per_sec']:,.1f} images/s " if row["run_id"] else ""
        print(f"{row['status']:>6}  {row['label']} #{row['repeat']}: {what}{row['reason']}", flush=True)

    rows = matrix.run_matrix(found, repeats, options.budget_s, tell=tell)
    table = archive.runs("measure")
    table = table[table["label"].isin([cell.label for cell in found])]
    if len(table):
        print("", matrix.markdown(matrix.throughput(table)), sep="\n")
    return int("failed" in set(rows.get("status", ())))


def _bundle(options: argparse.Namespace) -> int:
    from lib import bundle
    from lib.measure import machine

    name = machine.name()
    target = options.out or Path(f"{name}.zip")
    print(f"{target}: {len(bundle.pack(target, name))} files")
    return 0


def _advise(options: argparse.Namespace) -> int:
    import json

    from lib.predict import advise, advisewords

    question = advise.Question(options.model, options.batch_size, options.input, options.mode, options.dtype)
    found = advise.advise(question, options.device, crossovers=not options.json)
    if options.json:
        print(json.dumps(found.records(), indent=1))
        return 0
    print(advisewords.text(found))
    suggested = advise.suggestions(found)
    if options.verify:
        from tqdm import tqdm

        measured_ms, suggested = advise.verified(found, suggested, progress=lambda items, what: tqdm(items, desc=what))
        print(advisewords.verdict(found, measured_ms))
    print(advisewords.changes(suggested))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from lib.predict import calibrate

    print(calibrate.words(calibrate.calibrate(options.device, options.dtype, options.budget_s, lambda items, what: tqdm(
        items, desc=what, mininterval=1))))
    return 0


def _models(options: argparse.Namespace) -> int:
    """List the models at hand, or train those that ship from the reference and the imported data."""
    from tqdm import tqdm

    from lib.predict import evaluate, forge, shelf
    from lib.predict.costmodel import CostModel

    def progress(items, what):
        return tqdm(items, desc=what, mininterval=1)

    if options.train == "cpu":
        print(evaluate.evaluate(quick=options.quick, progress=progress)["scores"].to_string(index=False))
    elif options.train:
        dtype = "bf16" if options.train == "aiconfigurator" else "fp32"
        evaluate.published(options.train, dtype, options.quick, progress)
    held = [(device, dtype, CostModel.load(path)) for (device, dtype), path in shelf.shelved().items()]
    print(forge.summary(held).to_string(index=False, float_format=lambda value: f"{value:.1f}"))
    return 0


def _import(options: argparse.Namespace) -> int:
    from lib import bundle

    if options.kind == "gavel":
        from lib.schedule import gavel

        print("{}: {} rows".format(*gavel.bring_in(options.path)))
        return 0
    if options.kind != "bundle":
        from lib.measure import published

        for device, (path, rows) in published.bring_in(options.kind, options.path).items():
            print(f"{device}: {rows} rows in {path}")
        return 0
    if options.path is None:
        raise InputError("import bundle needs the path of a bundle")
    folder, new = bundle.merge(options.path, paths.REFERENCE if options.reference else None)
    print(f"{folder}: {new} new files")
    return 0


def _predicting(verbs) -> None:
    """Add the verbs that predict."""
    verb = verbs.add_parser("advise", help="where a network should run, how long it takes there, and what to change")
    verb.add_argument("model", help="a torchvision name, a workload id (W1), or module:Class")
    verb.add_argument("--input", default="", metavar="3x224x224", help="one sample's shape (default: the network's usual one)")
    verb.add_argument("--batch-size", type=int, default=0, help="default: the workload's own, or 1")
    verb.add_argument("--mode", default="infer", choices=("infer", "train"))
    verb.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    verb.add_argument("--device", action="append", default=[], help="a device; may be given again (default: all with a model)")
    verb.add_argument("--verify", action="store_true", help="measure the prediction and the changes on this machine's CPU")
    verb.add_argument("--json", action="store_true", help="print a list of objects, one a device")
    verb.set_defaults(call=_advise)

    verb = verbs.add_parser("models", help="the operator models at hand with their scores; or train those that ship")
    verb.add_argument("--train", choices=("cpu", "neusight", "aiconfigurator"),
                      help="train from the reference machine's data, or from imported published data")
    verb.add_argument("--quick", action="store_true", help="learn less, in a fraction of the time")
    verb.set_defaults(call=_models)

    verb = verbs.add_parser("calibrate", help="teach the nearest model this machine's device with a few measured points")
    verb.add_argument("--device", default="cpu", help="cpu (default) or cuda:0")
    verb.add_argument("--budget-s", type=float, default=120.0, help="time for measuring (default 120)")
    verb.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    verb.set_defaults(call=_calibrate)


def _exchanging(verbs) -> None:
    """Add the verbs that bring measurements from one machine to another."""
    verb = verbs.add_parser("bundle", help="pack what was measured on this machine into one file")
    verb.add_argument("--out", type=Path, help="the file to write (default: <machine>.zip)")
    verb.set_defaults(call=_bundle)

    verb = verbs.add_parser("import", help="merge what was measured elsewhere, or published")
    verb.add_argument("kind", choices=("bundle", "neusight", "pytorch-scheduler", "aiconfigurator", "gavel"))
    verb.add_argument("path", type=Path, nargs="?", help="file or folder (aiconfigurator: default is the installed package)")
    verb.add_argument("--reference", action="store_true", help="into data/reference, to be committed, instead of data/imported")
    verb.set_defaults(call=_import)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib",
                                     description="Measure, explain, predict and place neural-network work.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")

    verb = verbs.add_parser("machine", help="what this machine is: inventory, ids, devices, load")
    verb.set_defaults(call=_machine)

    verb = verbs.add_parser("run", help="run notebooks for the report, or check that the reference data reproduce")
    verb.add_argument("names", nargs="*", help="notebooks by name or number (default: all in params/report.yaml)")
    verb.add_argument("--full", action="store_true", help="the full parameter sets instead of the quick ones")
    verb.add_argument("--workloads", default="all", metavar="W1,W5", help="workload ids, or all (default)")
    verb.add_argument("--devices", default="auto", metavar="cpu,cuda:0", help="device ids, all, or auto (default)")
    verb.add_argument("--source", default="measure", choices=("measure", "replay"),
                      help="measure here, or replay the reference")
    verb.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                      help="a parameter for every chosen notebook that has it")
    verb.add_argument("--check", action="store_true", help="replay all and compare the key numbers with the committed ones")
    verb.add_argument("--accept", action="store_true", help="with --check: make the new key numbers the committed ones")
    verb.add_argument("--dry-run", action="store_true", help="print the papermill lines and run nothing")
    verb.set_defaults(call=_run)

    verb = verbs.add_parser("report", help="assemble report/index.html from the executed notebooks")
    verb.add_argument("--executed", type=Path, help="folder of executed notebooks")
    verb.add_argument("--out", type=Path, help="the page to write")
    verb.set_defaults(call=_report)

    verb = verbs.add_parser("data", help="fetch or check MedMNIST files, or print the dictionary of the tables")
    verb.add_argument("action", choices=("fetch", "check", "dictionary"))
    verb.add_argument("names", nargs="*", help="datasets (default: those of the workloads)")
    verb.add_argument("--size", type=int, choices=(28, 64, 128, 224), help="native size (default: what the workloads read)")
    verb.set_defaults(call=_data)

    verb = verbs.add_parser("compare", help="two measured runs or sweeps: is B faster, slower or the same, and by how much")
    verb.add_argument("a", help="a run id, a sweep's name, or a file or folder of either")
    verb.add_argument("b")
    verb.add_argument("--threshold", type=float, default=0.03, help="differences up to this are the same (default 0.03)")
    verb.add_argument("--out", type=Path, help="write every pair to this CSV")
    verb.set_defaults(call=_compare)

    verb = verbs.add_parser("matrix", help="measure the run matrix of params/matrix.yaml; a second call resumes")
    verb.add_argument("--device", default="auto", help="device id, or auto (default)")
    verb.add_argument("--cells", default="", metavar="resnet50/b16/fp32,...", help="some cells by name (default: all)")
    verb.add_argument("--repeats", type=int, default=0, help="runs a cell (default: as in params/matrix.yaml)")
    verb.add_argument("--budget-s", type=float, default=0.0, help="start no run after this many seconds (default: no limit)")
    verb.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                      help="a parameter of 02_profile for every run")
    verb.add_argument("--dry-run", action="store_true", help="print the cells and how many of their runs are there")
    verb.set_defaults(call=_matrix)

    _predicting(verbs)
    placing.add(verbs)
    _exchanging(verbs)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; return the exit status: 0 done, 1 something failed, 2 wrong input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return options.call(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    gc.set_threshold(1_000_000)  # importing makes many objects and no garbage
    status = main()
    if sys.argv[1:2] == ["advise"]:  # an answer is all it leaves, and taking torch apart would take as long as importing it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
