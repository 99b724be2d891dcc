"""What several writers write at once (tests/writers.py): the files of sweeps, of the matrix and of networks.

Nothing is measured, and tables are not validated, which takes longest. A scene's ``write(folder)`` goes on with what is there;
``wrong(folder)`` yields what is wrong with it after a writer has ended.
"""

import collections
import csv
import json
import os
import random
import time


def _widths(path):
    """Yield a line about each row that does not fit its header."""
    header, *rows = csv.reader(path.read_text().splitlines())
    yield from (f"{path.name}: torn: {row}" for row in rows if len(row) != len(header))


class Sweep:
    """The same sweep: eight configurations in three rounds, by a worker that takes half a millisecond a visit."""

    def __init__(self):
        from lib import files, store
        from lib.config.notebooks import SweepParams
        from lib.measure.operators import aggregate, device_sweep, sweep
        from lib.work.graph import spaces
        from tests import visitors

        class Visitor(visitors.Visitor):
            def visit(self, config, ops):
                time.sleep(0.0005)
                return super().visit(config, ops)

        store.validate = lambda frame, *_: frame
        definitions = spaces.load_sweeps()
        spaces.load_sweeps, spaces.Config.ops = lambda *_: definitions, lambda *_: ()
        device_sweep.Visitor = Visitor
        aggregate.derive = lambda folder, facts: files.replace(folder / "sweep.parquet", b"derived")
        chosen = [spaces.Config("activation", (("kind", "relu"), ("elements", 10 + number))) for number in range(8)]
        params = SweepParams(op="activation", device="cpu", count=8, rounds=3, budget_s=0)
        self._write = lambda: sweep.measure_sweep(params, chosen)

    def write(self, folder):
        from lib import paths

        paths.SWEEPS = folder
        self._write()

    def wrong(self, folder):
        """Yield what is wrong; one that began after others had ended made a second folder, which a kill may leave as it was."""
        first, *more = sorted(path for path in folder.iterdir() if path.is_dir())
        for part in (first, *(path for path in more if (path / "sweep.parquet").exists())):
            for name in ("configs.csv", "repeats.csv"):
                yield from _widths(part / "cpu" / name)
            rows = list(csv.DictReader((part / "cpu/repeats.csv").read_text().splitlines()))
            visits = {(row["config"], row["round"]) for row in rows}
            if not len(rows) == len(visits) == 24 or not (part / "sweep.parquet").exists():
                yield f"{part.name}: {len(rows)} visits, {len(visits)} different ones of 24"


class Matrix:
    """The same cell of each of two devices, thrice; a writer begins with one device, another with the other."""

    def __init__(self):
        from lib import paths, store
        from lib.config.notebooks import ProfileParams
        from lib.measure import archive, machine
        from lib.measure.training import matrix

        row = {**archive.runs("replay").iloc[0].to_dict(), **machine.ids(), "verdict": "stable"}
        store.validate = lambda frame, *_: frame
        workload = matrix.workload_of("pathmnist-28", "resnet18", 1)
        self._chosen = [[matrix.Cell(f"box/{device}/b1/fp32", workload, ProfileParams(
            device=device, label=f"box/{device}/b1/fp32"))] for device in ("cpu", "cuda:0")]

        def measure(p, workload):
            import pandas as pd

            name = f"run-{p.device[:3]}-{time.monotonic_ns()}"
            run = pd.DataFrame([{**row, "run_id": name, "label": p.label}])
            store.write(run, paths.RUNS / f"{name}.csv", "runs")
            return run.iloc[0]

        matrix.in_a_process = measure
        self._write = lambda cells: matrix.run_matrix(cells, 3)

    def write(self, folder):
        from lib import paths

        paths.DATA, paths.MATRIX, paths.RUNS, paths.IMPORTED = folder, folder / "matrix", folder / "runs", folder / "imported"
        for number in range(2):
            self._write(self._chosen[(os.getpid() + number) % 2])

    def wrong(self, folder):
        """Yield what is wrong: a run that nobody needed, or one that is missing."""
        yield from _widths(folder / "matrix/cells.csv")
        labels = collections.Counter(line["label"] for path in (folder / "runs").glob("*.csv")
                                     for line in csv.DictReader(path.read_text().splitlines()))
        if len(labels) != 2 or set(labels.values()) != {3}:
            yield f"runs: {dict(labels)}"


class Networks:
    """The same three networks in two rounds."""

    def __init__(self):
        from lib.measure import machine
        from lib.measure.networks import campaign
        from lib.measure.networks.visits_file import Result
        from lib.work.run_config import RunConfig

        def in_a_process(cases, *_):
            time.sleep(0.002)
            return [Result(case=case, samples_ms=[1 + random.random()] * 5, reference_kernel_ms=[1.0] * 5, rss_mb=1.0,
                           tensors_mb=1.0) for case in cases], {**machine.ids(), "threads": 1}

        campaign.in_a_process = in_a_process
        wanted = [(RunConfig(name, 1), "kept") for name in ("W1", "W2", "W6")]
        self._write = lambda raw: campaign.measure(wanted, rounds=2, raw=raw)

    def write(self, folder):
        self._write(folder / "visits.jsonl")

    def wrong(self, folder):
        """Yield what is wrong: a torn line, or a visit that is there twice or not at all."""
        visits = [json.loads(line) for line in (folder / "visits.jsonl").read_text().splitlines()]
        keys = {(visit["round"], visit["network"]) for visit in visits}
        if not len(visits) == len(keys) == 6:
            yield f"{len(visits)} visits, {len(keys)} different ones of 6"


SCENES = (Sweep, Matrix, Networks)
