"""Nsight Compute's counters of cells of the matrix; each is trained for a few batches, untimed."""

import subprocess
import sys
import tempfile
from pathlib import Path

from lib import files, paths, store
from lib.errors import InputError
from lib.measure.training.matrix import Cell
from lib.measure.worker import environment

# few batches: the profiler runs each kernel several times
_SHORT = {"profile": "False", "warmup_iters": "2", "warmup_s": "0", "iters": "5", "budget_s": "0"}


def collect(cell: Cell, options: dict[str, str]) -> Path:
    """Count the work of a cell's kernels into a new CSV of ``data/matrix/``; return its path.

    ``options`` are further parameters of the runs, whose rows are thrown away. Raises InputError
    with the script's reason, such as counters that the driver keeps to administrators.
    """
    device = cell.params.device
    if not device.startswith("cuda"):
        raise InputError(f"{cell.label}: Nsight Compute counts on a CUDA device, not on {device}")
    path = store.fresh_file(files.folder(paths.MATRIX), f"nsight_{cell.label.replace('/', '-')}")
    command = ["bash", paths.PARAMS / "collect_nsight.sh", path, sys.executable, "-m", "lib",
               "measure", "matrix", "--device", device, "--cells", cell.name, "--repeats", "1"]
    for name, value in (_SHORT | options).items():
        command += ["-p", name, value]
    with tempfile.TemporaryDirectory() as home:
        variables = {**environment(), "LIB_OUTPUT": home, "PYTHONPATH": str(paths.ROOT)}
        done = subprocess.run(command, cwd=paths.ROOT, env=variables, capture_output=True,
                              text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        reason = next((line for line in lines if line.startswith("error:")), done.stderr[-200:])
        raise InputError(f"{cell.label}: no counters: {reason or f'status {done.returncode}'}")
    return path
