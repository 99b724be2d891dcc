"""CPUs emulated by older instructions and fewer threads: errors of whole networks there, zero-shot and calibrated.

Each machine is a process limited to some instructions and pinned to some cores, with files of its own below
``LIB_OUTPUT/machines``; a second call goes on where the first one ended. ``python -m benchmarks.machines [--budget-s 120]
[--machines avx2-1 ...] [--networks alexnet ...]``.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from lib import paths, store
from lib.errors import InputError
from lib.measure import machine
from lib.measure.networks import campaign
from lib.measure.networks.case import Case
from lib.measure.reference_kernel import ProcessorSpeed
from lib.predict import calibrate, registry, transfer_cpu
from lib.predict.calibrate_networks import CASES
from lib.predict.networks import work
from lib.predict.registry import Predictor
from lib.predict.scores import score
from lib.work import networks

INSTRUCTIONS = {"avx512": ("AVX512_CORE", "avx512", "AVX512"), "avx2": ("AVX2", "avx2", "AVX2"),
                "sse41": ("SSE41", "default", "SSE4_2")}
MACHINES = tuple(f"{name}-{threads}" for name in INSTRUCTIONS for threads in (1, 2))
# No calibration is fitted to their families. The shipped composition is, to three of them.
UNSEEN = ("alexnet", "inception_v3", "mobilenet_v2", "maxvit_t", "benchmarks.machines:Encoder", "benchmarks.machines:Mixer",
          "benchmarks.machines:Pyramid")
OTHERS = ("googlenet", "efficientnet_b1", "efficientnet_v2_s", "regnet_x_1_6gf", "regnet_y_800mf", "vgg13", "vit_b_32")
KEYS = ["network", "mode", "batch_size"]
BUDGET_S, NETWORKS = 120.0, (*UNSEEN, *OTHERS)
TOY = {"BUDGET_S": 10.0, "NETWORKS": ("alexnet",), "MACHINES": MACHINES[-2:-1]}


class Encoder(nn.Sequential):
    """An encoder and a decoder of convolutions with leaky activations, as for segmentation."""

    def __init__(self):
        def stage(ins: int, outs: int, *change: nn.Module) -> list[nn.Module]:
            return [*change, nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.LeakyReLU(0.1)]

        super().__init__(*stage(3, 24), *stage(24, 48, nn.MaxPool2d(2)), *stage(48, 96, nn.MaxPool2d(2)),
                         *stage(96, 96, nn.MaxPool2d(2)), *stage(96, 48, nn.Upsample(scale_factor=2)),
                         *stage(48, 24, nn.Upsample(scale_factor=2)), nn.Conv2d(24, 8, 1))


class Mixer(nn.Module):
    """Patches mixed by linear layers over places and channels."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 256, 16, 16), nn.Linear(256, 1000)
        self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(12))
        self.mixing = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                                    for _ in range(6) for width in (196, 256))

    def forward(self, images):
        """Return class scores (n, 1000) of images (n, 3, 224, 224)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        for number, (norm, mix) in enumerate(zip(self.norms, self.mixing, strict=True)):
            y = norm(x)
            x = x + (mix(y) if number % 2 else mix(y.transpose(1, 2)).transpose(1, 2))
        return self.head(x.mean(1))


class Pyramid(nn.Sequential):
    """A plain stack of strided depthwise and pointwise convolutions."""

    def __init__(self):
        widths, layers = (3, 32, 64, 128, 256, 512), []
        for ins, outs in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Conv2d(ins, ins, 5, 2, 2, groups=ins), nn.Conv2d(ins, outs, 1), nn.BatchNorm2d(outs), nn.SiLU(),
                       nn.Conv2d(outs, outs, 3, padding=1, groups=4 if outs > 32 else 1), nn.SiLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def _predicted(predictor: Predictor, rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return ``<name>_ms, _low_ms, _high_ms`` of measured networks."""
    answers = []
    for row in rows.itertuples():
        item = work.captured(networks.network(row.network, int(row.batch_size)), row.mode)
        estimate = predictor.estimate(item, row.memory)
        answers.append((estimate.predicted_ms, estimate.low_ms, estimate.high_ms))
    return pd.DataFrame(answers, index=rows.index, columns=[f"{name}_ms", f"{name}_low_ms", f"{name}_high_ms"])


def one_machine(budget_s: float, names: list[str], path: Path) -> None:
    """Look, calibrate, measure the held-out networks at once after it; predict them by both; write a row a case to ``path``.

    Where the calibration is refused, as the column ``refused`` says, both answers are zero-shot: a user goes on with these.
    """
    here = transfer_cpu.host() or transfer_cpu.measure_ceilings()
    nearest = transfer_cpu.transferred(registry.reference_cpus("fp32"), here)[0]
    refused = False
    if not registry.path_of(registry.cpu_here(), "fp32").exists():
        try:
            print("  ", calibrate.summary(calibrate.calibrate("cpu", budget_s=budget_s)), flush=True)
        except InputError as error:
            refused = True
            print(f"   not calibrated: {error}", flush=True)
    folder = paths.NETWORKS / "held_out"
    cases = [(Case(name, mode, batch), "default") for name in names for mode, batch in CASES]
    table, facts = campaign.measure(cases, "cpu", 1, 0.5, raw=folder / "visits.jsonl")
    campaign.write(table, folder / "networks.parquet", **facts)
    rows = table[table["status"] == "ok"].reset_index(drop=True)
    zero_shot = _predicted(Predictor("cpu", "fp32", nearest, nearest.device), rows, "zero_shot")
    after = _predicted(registry.predictor("cpu", "fp32"), rows, "calibrated")
    measured = rows[[*KEYS, "memory", "threads", "hardware_id", "latency_ms", "verdict"]]
    speed = ProcessorSpeed.from_visits(store.read_all(sorted(paths.SWEEPS.glob("calibration_*/*/repeats.csv")), "repeats"))
    usual_ms = speed.at_usual_ms(rows["latency_ms"], campaign.reference_ms(rows, folder / "visits.jsonl"))
    measured = measured.assign(measured_ms=rows["latency_ms"], latency_ms=usual_ms, **asdict(speed), machine=machine.name(),
                               unseen_family=rows["network"].isin(UNSEEN), refused=refused)
    pd.concat([measured, zero_shot, after], axis=1).to_csv(path, index=False)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a machine: cases, MAPE, bias, and coverage of the intervals in %, zero-shot and calibrated.

    Where the calibration was ``refused``, the calibrated answers are the zero-shot ones. Rows whose measurement is unusable are
    left out, and counted; ``unseen_`` columns are of UNSEEN. Measured is what a network takes on the
    processor as fast as usual while it was calibrated, by the reference kernel beside it; ``as_measured`` is what it took.
    """
    summaries = []
    for name, every in rows.groupby("emulated", sort=False):
        usable = every[every["verdict"] != "unusable"]
        line = {"machine": name, "cases": len(usable), "unusable": len(every) - len(usable),
                "refused": bool(every["refused"].any())}
        for prefix, some in (("", usable), ("unseen_", usable[usable["unseen_family"]])):
            for which in ("zero_shot", "calibrated"):
                error = score(some["latency_ms"], some[f"{which}_ms"])
                as_measured = score(some["measured_ms"], some[f"{which}_ms"])
                covered = some["latency_ms"].between(some[f"{which}_low_ms"], some[f"{which}_high_ms"])
                line |= {f"{prefix}{which}_mape": error.get("mape", np.nan), f"{prefix}{which}_bias": error.get("bias", np.nan),
                         f"{prefix}{which}_mape_as_measured": as_measured.get("mape", np.nan),
                         f"{prefix}{which}_coverage": covered.mean() * 100}
        summaries.append(line)
    return pd.DataFrame(summaries)


def _run(emulated: str, options: argparse.Namespace, folder: Path) -> Path:
    """Run one machine in a process limited to its instructions and pinned to its cores, unless it has ended before.

    The file that is returned is missing where that failed, which the process has said.
    """
    path, (instructions, _, threads) = folder / "predictions.csv", emulated.rpartition("-")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    onednn, aten, mkl = INSTRUCTIONS[instructions]
    cores = sorted(os.sched_getaffinity(0))[:int(threads)]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": mkl,
                   "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "LIB_OUTPUT": str(folder)}
    command = [sys.executable, "-m", "benchmarks.machines", "--child", str(path), "--budget-s", str(options.budget_s),
               "--networks", *options.networks]
    subprocess.run(command, check=False, env=environment, cwd=paths.ROOT, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    return path


def main(arguments: list[str] | None = None) -> None:
    """Run the machines that this host can emulate, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="of a calibration")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args([] if arguments is None else arguments)
    if options.child:
        try:
            one_machine(options.budget_s, options.networks, options.child)
        except InputError as error:
            print(f"   not measured: {error}", flush=True)
        return
    flags, several, root = machine._proc_cpuinfo().get("flags", ""), [], paths.OUTPUT / "machines"
    for emulated in options.machines:
        instructions, _, threads = emulated.rpartition("-")
        if int(threads) > len(os.sched_getaffinity(0)) or (instructions == "avx512" and "avx512f" not in flags):
            print(f"   {emulated}: this host has too few cores, or not these instructions")
            continue
        print(f"   {emulated}", flush=True)
        path = _run(emulated, options, root / emulated)
        if path.exists():
            several.append(pd.read_csv(path).assign(emulated=emulated))
    if several:
        table = summary(pd.concat(several, ignore_index=True))
        table.to_csv(root / "summary.csv", index=False)
        print(table.to_string(index=False, float_format=lambda value: f"{value:.1f}"))


if __name__ == "__main__":
    main(sys.argv[1:])
