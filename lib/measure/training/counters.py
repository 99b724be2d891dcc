"""Counters of Nsight Compute for cells of the matrix: each is trained for a few batches under the profiler, and never timed."""

import subprocess
import sys
import tempfile
from pathlib import Path

from lib import files, paths, store
from lib.errors import InputError
from lib.measure.training.matrix import Cell
from lib.measure.worker import environment

_SCRIPT = paths.PARAMS / "collect_nsight.sh"
# few batches: the profiler runs each kernel several times
_SHORT = {"profile": "False", "warmup_iters": "2", "warmup_s": "0", "iters": "5", "budget_s": "0"}


def collect(cell: Cell, options: dict[str, str]) -> Path:
    """Count what the kernels of a cell do, into a new CSV of ``data/matrix/``; return its path.

    The runs themselves, which the profiler slows down, are thrown away. ``options`` are further parameters of the runs. Raises
    InputError with the script's reason, such as counters that the driver keeps to administrators.
    """
    if not cell.params.device.startswith("cuda"):
        raise InputError(f"{cell.label}: Nsight Compute counts what a CUDA device does, not {cell.params.device}")
    path = store.fresh_file(files.folder(paths.MATRIX), f"nsight_{cell.label.replace('/', '-')}")
    parameters = [word for pair in (_SHORT | options).items() for word in ("-p", *pair)]
    with tempfile.TemporaryDirectory() as home:
        program = [sys.executable, "-m", "lib", "measure", "matrix", "--device", cell.params.device, "--cells", cell.name]
        done = subprocess.run(["bash", _SCRIPT, path, *program, "--repeats", "1", *parameters], cwd=paths.ROOT,
                              env={**environment(), "LIB_OUTPUT": home, "PYTHONPATH": str(paths.ROOT)},
                              capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr[-200:])
        raise InputError(f"{cell.label}: no counters: {' '.join(reason.split()) or f'exit status {done.returncode}'}")
    return path
