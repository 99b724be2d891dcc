"""The measured ceilings beside a peer's on the same machine in the same minute: STREAM's triad in C, and NumPy's product."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import paired
from lib.measure import machine, probes, timing

C_TRIAD = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  long n = atol(argv[1]); double *a = malloc(8*n), *b = malloc(8*n), *c = malloc(8*n); char line[64];
  #pragma omp parallel for
  for (long i = 0; i < n; i++) { a[i] = 0; b[i] = 1; c[i] = 2; }
  while (fgets(line, sizeof line, stdin)) {
    int calls = atoi(line);
    #pragma omp parallel
    { }
    double t = omp_get_wtime();
    for (int k = 0; k < calls; k++) {
      #pragma omp parallel for
      for (long i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
    }
    printf("%.9f\n", (omp_get_wtime() - t) / calls); fflush(stdout);
  }
}
"""
CPU = torch.device("cpu")
PAIRS = 60
TOY = {"PAIRS": 2}
REST_S = 0.02


def _triads(folder: Path) -> None:
    binary = folder / "triad"
    (folder / "triad.c").write_text(C_TRIAD)
    subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", folder / "triad.c", "-o", binary], check=True)
    last = max(machine.cache_bytes().values(), default=2**25)
    for name, touched in (("half of L2", machine.cache_bytes().get("L2", 2**20)), ("half of the last cache", last // 2),
                          ("RAM", 8 * last)):
        elements = touched // 24
        ours = probes._triad(elements, CPU)
        calls = max(1, int(2e8 / touched))
        peer = subprocess.Popen([binary, str(elements)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env={"OMP_NUM_THREADS": str(torch.get_num_threads())})

        def theirs(peer=peer, calls=calls) -> float:
            time.sleep(REST_S)
            print(calls, file=peer.stdin, flush=True)
            return float(peer.stdout.readline()) * 1e3

        def own(ours=ours, calls=calls) -> float:
            return _rested(ours, calls)

        _pairs(f"triad, {name} ({touched / 1e6:.1f} MB)", own, theirs, 24 * elements / 1e6, "GB/s", "STREAM in C")
        peer.kill()
        peer.wait()


def _rested(call, calls: int) -> float:
    """Time calls after a rest: the peer's threads go on spinning for a while after its own, on our cores."""
    time.sleep(REST_S)
    return timing.time_calls(call, calls, CPU)


def _pairs(what: str, own, theirs, work: float, unit: str, peer: str) -> None:
    own(), theirs()
    samples: dict[str, list[float]] = {"own": [], "peer": []}

    def keep(name: str, take) -> float:
        samples[name].append(take())
        return samples[name][-1]

    result = paired.compare(lambda: keep("peer", theirs), lambda: keep("own", own), PAIRS)
    mine, other = (work / np.percentile(samples[name], 10) for name in ("own", "peer"))
    print(f"   {what}: ours {mine:,.1f} {unit}, {peer} {other:,.1f}; ratio of the ceilings {mine / other:.3f}, pair by pair "
          f"{result.ratio:.3f} [{result.low:.3f}, {result.high:.3f}]")


def main() -> None:
    """Print ours, the peer's and the ratio for each ceiling."""
    if shutil.which("gcc"):
        with tempfile.TemporaryDirectory() as folder:
            _triads(Path(folder))
    else:
        print("   no gcc here: STREAM's triad was not compared")
    for name, dtype, n in (("fp32", np.float32, 1024), ("fp64", np.float64, 1024)):
        left, right = (np.random.default_rng(0).random((n, n)).astype(dtype) for _ in range(2))
        ours = probes._gemm(name, n, CPU)
        _pairs(f"product {name} {n}", lambda ours=ours: _rested(ours, 5),
               lambda left=left, right=right: _rested(lambda: left @ right, 5), 2 * n**3 / 1e6, "GFLOP/s", "NumPy")
