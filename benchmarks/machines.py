"""CPUs, this one and those that it emulates by older instructions and fewer threads: errors of whole networks on them.

Networks are predicted as shipped (zero-shot) and calibrated, and measured at several moments, since the speed of a shared host
changes. Each machine is a process limited to some instructions and pinned to some cores, with files of its own below
``LIB_OUTPUT/machines``; a second call goes on where the first one ended. ``python -m benchmarks.machines [--budget-s 120]
[--machines native-2 avx2-1 ...] [--networks alexnet ...] [--moments 4] [--heaps default kept]``.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from lib import paths
from lib.errors import InputError
from lib.measure import machine, worker
from lib.measure.networks import campaign, visits_file
from lib.measure.networks.allocator import HEAPS
from lib.measure.reference_kernel import ELASTICITY, USUAL, ProcessorSpeed
from lib.predict import calibrate, registry, transfer_cpu
from lib.predict.calibrate_networks import CASES
from lib.predict.networks import work
from lib.predict.registry import Predictor
from lib.predict.scores import score
from lib.work import networks
from lib.work.graph.ops import MODES
from lib.work.run_config import RunConfig

INSTRUCTIONS = {"native": (), "avx512": ("AVX512_CORE", "avx512", "AVX512"), "avx2": ("AVX2", "avx2", "AVX2"),
                "sse41": ("SSE41", "default", "SSE4_2")}
MACHINES = tuple(f"{name}-{threads}" for name in INSTRUCTIONS for threads in (1, 2))
# No calibration is fitted to their families. The shipped composition is, to three of them.
UNSEEN = ("alexnet inception_v3 mobilenet_v2 maxvit_t benchmarks.machines:Encoder benchmarks.machines:Mixer "
          "benchmarks.machines:Pyramid timm:dla34 timm:res2net50_26w_4s timm:hrnet_w18_small timm:efficientformer_l1 "
          "timm:xcit_nano_12_p16_224 timm:fastvit_t8").split()
OTHERS = "googlenet efficientnet_b1 efficientnet_v2_s regnet_x_1_6gf regnet_y_800mf vgg13 vit_b_32".split()
KEYS = ["network", "mode", "batch_size"]
BUDGET_S, MOMENTS, NETWORKS = 120.0, 2, (*UNSEEN, *OTHERS)
TOY = {"BUDGET_S": 10.0, "MOMENTS": 1, "NETWORKS": ("alexnet",), "MACHINES": MACHINES[-2:-1]}


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
    """Return predictions of networks: ``<name>_ms`` at the processor's usual speed, and its interval."""
    answers, cases = {}, ["network", "mode", "batch_size", "memory"]
    for case in rows[cases].drop_duplicates().itertuples(index=False):
        item = work.captured(networks.network(case.network, int(case.batch_size)), case.mode)
        answers[tuple(case)] = tuple(predictor.estimate(item, case.memory).times.values())
    return pd.DataFrame([answers[key] for key in rows[cases].itertuples(index=False, name=None)], index=rows.index,
                        columns=[f"{name}_{end}ms" for end in ("", "low_", "high_")])


def _visits(cases: list, moments: int, folder: Path) -> pd.DataFrame:
    """Measure cases at some moments, a fresh process each time; return a row a visit with the reference kernel's time."""
    campaign.measure(cases, "cpu", moments, 0.5, raw=folder / "visits.jsonl")
    tables = []
    for visit in visits_file.recorded(folder / "visits.jsonl"):
        table = campaign.summarise([visit], visit.identity, "cpu")
        raw = {result.case: np.median(result.samples_ms) for result in visit.results if result.samples_ms}
        kernel = {result.case: np.median(result.reference_kernel_ms) for result in visit.results if result.samples_ms}
        by_case = [RunConfig.from_row(row) for row in table.to_dict("records")]
        tables.append(table.assign(moment=visit.round, measured_ms=[raw.get(case, np.nan) for case in by_case],
                                   reference_ms=[kernel.get(case, np.nan) for case in by_case]))
    return pd.concat(tables, ignore_index=True).query("status == 'ok'").reset_index(drop=True)


def one_machine(options: argparse.Namespace) -> None:
    """Calibrate, measure held-out networks after it at some moments, predict them as shipped and calibrated; write the rows.

    Where the calibration is refused, as the column ``refused`` says, both answers are zero-shot: a user goes on with these.
    """
    here = transfer_cpu.host() or transfer_cpu.measure_ceilings()
    nearest = transfer_cpu.transferred(registry.reference_cpus("fp32"), here)[0]
    refused = False
    if not registry.path_of(registry.cpu_here(), "fp32").exists():
        try:
            print("  ", calibrate.summary(calibrate.calibrate(budget_s=options.budget_s)), flush=True)
        except InputError as error:
            refused = True
            print(f"   not calibrated: {error}", flush=True)
    cases = [(RunConfig(name, batch, mode=mode), heap) for name in options.networks for mode, batch in CASES
             for heap in options.heaps if mode in options.modes]
    rows = _visits(cases, options.moments, paths.NETWORKS / "held_out")
    calibrated = registry.predictor("cpu", "fp32")
    usual_ms = float(np.percentile(rows["reference_ms"].dropna(), USUAL))
    learned = calibrated.model.facts.get("processor_speed", {"usual_ms": usual_ms, "elasticity": ELASTICITY})
    rows = rows.assign(latency_ms=ProcessorSpeed(**learned).at_usual_ms(rows["measured_ms"], rows["reference_ms"]), **learned,
                       refused=refused, machine=machine.name(), unseen_family=rows["network"].isin(UNSEEN))
    zero_shot = _predicted(Predictor("cpu", "fp32", nearest, nearest.device), rows, "zero_shot")
    after = _predicted(calibrated, rows, "calibrated")
    pd.concat([rows, zero_shot, after], axis=1).to_csv(options.child, index=False)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per machine and heap: errors as shipped and calibrated, of usual times and of raw ones, in %.

    ``mape, bias`` and ``inside`` are of times at the processor's usual speed, by the reference kernel beside them.
    ``raw_mape`` and ``raw_inside`` are of the times as measured.
    ``spread`` is that of the machine: the slowest over the fastest moment of a case. ``unseen_`` columns are of UNSEEN.
    """
    lines = []
    for key, every in rows.groupby(["emulated", "memory"], sort=False):
        by_case = every.groupby([*KEYS])["measured_ms"]
        line = {**dict(zip(("machine", "heap"), key, strict=True)), "n": len(every), "refused": bool(every["refused"].any()),
                "spread": (by_case.max() / by_case.min()).mean()}
        for which in ("zero_shot", "calibrated"):
            low_ms, high_ms = every[f"{which}_low_ms"], every[f"{which}_high_ms"]
            error = score(every["latency_ms"], every[f"{which}_ms"])
            unseen = score(*(every.loc[every["unseen_family"], name] for name in ("latency_ms", f"{which}_ms")))
            line |= {f"{which}_mape": error["mape"], f"{which}_bias": error["bias"],
                     f"unseen_{which}_mape": unseen.get("mape", np.nan),
                     f"{which}_raw_mape": score(every["measured_ms"], every[f"{which}_ms"])["mape"],
                     f"{which}_inside": every["latency_ms"].between(low_ms, high_ms).mean() * 100,
                     f"{which}_raw_inside": every["measured_ms"].between(low_ms, high_ms).mean() * 100}
        lines.append(line)
    return pd.DataFrame(lines)


def _run(emulated: str, options: argparse.Namespace, folder: Path) -> Path:
    """Run one machine in a process limited to its instructions and pinned to its cores, unless it has ended before.

    The file that is returned is missing where that failed, which the process has said.
    """
    path, (instructions, _, threads) = folder / "predictions.csv", emulated.rpartition("-")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    limits = dict(zip(("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"), INSTRUCTIONS[instructions],
                      strict=False))
    cores = worker.allowed_cores()[:int(threads)]
    environment = {**os.environ, **limits, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "LIB_OUTPUT": str(folder)}
    command = [sys.executable, "-m", "benchmarks.machines", "--child", str(path), "--budget-s", str(options.budget_s),
               "--moments", str(options.moments), "--networks", *options.networks, "--heaps", *options.heaps, "--modes",
               *options.modes]
    subprocess.run(command, check=False, env=environment, cwd=paths.ROOT, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    return path


def main(arguments: list[str] | None = None) -> None:
    """Run the machines that this host can emulate, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="of a calibration")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--moments", type=int, default=MOMENTS, help="at which each network is measured")
    parser.add_argument("--heaps", nargs="+", choices=list(HEAPS), default=["default"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args([] if arguments is None else arguments)
    if options.child:
        try:
            one_machine(options)
        except InputError as error:
            print(f"   not measured: {error}", flush=True)
        return
    flags, several, root = machine._proc_cpuinfo().get("flags", ""), [], paths.OUTPUT / "machines"
    for emulated in options.machines:
        instructions, _, threads = emulated.rpartition("-")
        if int(threads) > len(worker.allowed_cores()) or (instructions == "avx512" and "avx512f" not in flags):
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
