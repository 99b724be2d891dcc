"""Another machine, emulated: an older processor's instructions, one thread, empty folders; measuring beside busy neighbours."""

import os
import re
import resource

import pytest

from lib import executed_notebooks, paths, store
from tests import python
from tests.conftest import busy_neighbours

pytestmark = [pytest.mark.elsewhere, pytest.mark.xdist_group("measured")]
# No AVX-512 in oneDNN, ATen, NumPy and compiled code; one thread everywhere.
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
         "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR", "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1",
         "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Processor time of a notebook, which was 25 to 47 s on two cores: how long it waits for a core is up to its neighbours.
NOTEBOOK_S = 75


def emulated(folder):
    """Return what the environment of the other machine has besides; its output and temporary files lie in ``folder``."""
    (folder / "tmp").mkdir()
    return {**OLDER, "LIB_BATCH": "1", "LIB_OUTPUT": str(folder), "TMPDIR": str(folder / "tmp")}


def processor_s():
    """Return the processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.xdist_group("replay")  # beside the measurements, which have neighbours in any case
def test_the_key_numbers_reproduce_on_another_processor(tmp_path):
    """Those of predictions; those of 07 have a tolerance of a hundredth."""
    done = python("-m", "lib", "run", "06", "09", "--check", **emulated(tmp_path))
    assert re.search(r"reproduced: the key numbers of \d+ replayed notebooks did not move", done.stdout)


@pytest.mark.parametrize("notebook, values, pattern, table, positive", [
    ("01_machine", "", "ceilings/ceilings_*.csv", "ceilings", "peak_gflops"),
    ("02_profile", "-p workload W1", "runs/*.csv", "runs", "images_per_sec"),
    ("03_sweep", "-p op conv2d -p budget_s 30", "sweeps/*/sweep.parquet", "sweep", "latency_ms")])
def test_what_is_measured_beside_busy_neighbours_is_marked(tmp_path, notebook, values, pattern, table, positive):
    """A notebook ends in time and without an error beside neighbours on every core."""
    before_s = processor_s()
    with busy_neighbours(os.cpu_count()):
        python("-m", "papermill", paths.NOTEBOOKS / f"{notebook}.ipynb", tmp_path / "out.ipynb", "--no-progress-bar",
               *values.split(), **emulated(tmp_path))
    assert processor_s() - before_s < NOTEBOOK_S
    outputs = executed_notebooks.outputs(tmp_path / "out.ipynb")
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    rows = store.read_all((tmp_path / "data").glob(pattern), table)
    verdicts = rows.loc[rows["status"] == "ok", "verdict"] if "status" in rows else rows["verdict"]
    assert len(verdicts) and set(verdicts) <= {"noisy", "unusable"}, verdicts.value_counts().to_dict()
    assert rows[positive].max() > 0
