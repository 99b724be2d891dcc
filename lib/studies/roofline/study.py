"""The roofline study of one device: its roofs, training steps, networks and operators as points, and what they say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import store
from lib.config import definitions
from lib.config.notebooks import MachineParams, RooflineParams
from lib.errors import InputError, choices
from lib.measure import archive, ceilings, machine
from lib.measure.operators import isolated
from lib.measure.training import matrix
from lib.predict.analytic import nsight, roofline
from lib.predict.analytic.roofline import Roof
from lib.work import networks
from lib.work.building import fakes
from lib.work.dtypes import torch_name
from lib.work.graph import capture, counts, ops
from lib.work.workloads import prepare

CEILINGS_S = 12.0
COMPARED = ["label", "measured_ms", "roof_ms", "operators_roof_ms", "memory_bound_pct", "over_operators"]


@dataclass(frozen=True)
class Study:
    """What the notebook shows: roofs of the device and, apart, of a vendor; ``points`` tables; runs; and what was left out."""

    roofs: list[Roof]
    vendor: list[Roof]
    steps: pd.DataFrame
    networks: pd.DataFrame
    operators: pd.DataFrame
    counted: pd.DataFrame
    runs: pd.DataFrame
    parts: dict[str, np.ndarray]
    note: str
    left_out: tuple[str, ...]

    def roof(self, dtype: str) -> Roof:
        """Return the measured roof of an element type; InputError lists those that were measured."""
        matching = [roof for roof in self.roofs if roof.dtype == dtype]
        if not matching:
            raise InputError(f"no {dtype} roof was measured on {self.roofs[0].device}; there are: "
                             f"{choices(roof.dtype for roof in self.roofs)}")
        return matching[0]

    @property
    def counting(self) -> list[Roof]:
        """Return the roofs of what Nsight Compute counted: those of a CUDA device, else the vendor's."""
        return self.roofs if self.roofs[0].backend == "cuda" else self.vendor

    @property
    def whole(self) -> pd.DataFrame:
        """Return steps and networks together."""
        return pd.concat([part for part in (self.steps, self.networks) if len(part)] or [self.steps], ignore_index=True)


# ------------------------------------------------------------------------------------------------- training steps

def newest(runs: pd.DataFrame, roof: Roof, software_id: str) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the newest usable run of each configuration on the roof's device and software, and counts of what was left out.

    Each environment of the matrix has runs of its own.
    """
    here = runs.query("hardware_id == @roof.hardware_id and backend == @roof.backend")
    same, keys = here.query("software_id == @software_id"), ["workload_id", "arch", "batch_size", "precision"]
    newest, unusable = matrix.newest(same.assign(env=matrix.environment(same)), ["env", *keys, "channels_last"])
    return newest.sort_values(keys), {"runs of other software": len(here) - len(same), "unusable runs": unusable}


def step_work(run: Any) -> np.ndarray:
    """Return FLOPs and compulsory bytes (n, 2) of the operators of one training step of a run, by their shapes.

    The optimizer's share counts once in as many steps as gradients are accumulated over; views are no work. Raises InputError
    for operators whose FLOPs are not known.
    """
    task = prepare(matrix.workload_of(run.workload_id, run.arch, run.batch_size))
    graph = capture.capture(fakes.build(task.model), (task.workload.batch_size, *task.shape), "train", run.optimizer,
                            dtype=torch_name(run.precision), channels_last=bool(run.channels_last), device=run.backend)
    unknown = sorted({op.short for op in graph.ops if not counts.is_counted(op)})
    if unknown:
        raise InputError(f"{task.workload.id}: the FLOPs of {choices(unknown)} are not known")
    share = {"optimizer": 1 / run.grad_accum_steps}
    return _parts(graph) * np.array([[share.get(op.phase, 1.0)] for op in graph.ops if op.short not in counts.VIEWS])


def _parts(graph: ops.Graph) -> np.ndarray:
    return np.array([(counts.flops(op), counts.compulsory_bytes(op)) for op in graph.ops if op.short not in counts.VIEWS])


def network_work(name: str, batch_size: int, dtype: str, device: str) -> np.ndarray:
    """Return FLOPs and compulsory bytes (n, 2) of the operators of a forward pass on a device."""
    return _parts(capture.of_network(networks.network(name, batch_size), dtype=torch_name(dtype), device=device))


def step_rows(runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, np.ndarray], list[str]]:
    """Return a row of work for the step of each run (rows of ``runs``), its operators by label, and why some runs have none.

    The time is the pipelined step, loader included. Bytes are compulsory; under autocast, where torch casts back and forth,
    they are estimated as if all tensors were of its type.
    """
    rows, parts, skipped = [], {}, []
    for run in runs.assign(env=matrix.environment(runs)).itertuples(index=False):
        try:
            each = step_work(run)
        except InputError as error:
            skipped.append(f"{run.run_id}: {error}")
            continue
        label = _step_name(run)
        parts[label] = each
        rows.append({**run._asdict(), "label": label, "flops": each[:, 0].sum(), "bytes": each[:, 1].sum(), "calls": len(each),
                     "elapsed_sec": run.elapsed_sec / run.measured_iters,
                     "bytes_source": "compulsory" if run.precision == "fp32" else "estimated", "kind": "step",
                     "family": f"{run.arch} step", "occurrences": 1, "level": "",
                     "roof_dtype": "tf32" if run.tf32 and run.precision == "fp32" else run.precision})
    return pd.DataFrame(rows, columns=roofline.WORK), parts, skipped


def _step_name(run: Any) -> str:
    """Return the name of a step: the workload's id, with what differs from its definition."""
    stated = definitions.workloads().get(run.workload_id)
    words = [stated.id if stated else run.arch, "" if stated and stated.batch_size == run.batch_size else f"b{run.batch_size}",
             "" if run.precision == "fp32" else run.precision, "channels_last" if run.channels_last else ""]
    return " ".join(filter(None, words))


# ------------------------------------------------------------------------------------------------- gathering

def _ceilings(p: RooflineParams, device: str) -> ceilings.Ceilings:
    """Return the newest ceilings of this hardware and software that 01_machine measured; measured now where there are none."""
    parameters = MachineParams(source=p.source, reference=p.reference, device=device, budget_s=CEILINGS_S)
    if p.source == "replay":
        return ceilings.replay_ceilings(parameters)
    return ceilings.saved(device) or ceilings.measure_ceilings(parameters)


def _isolated(p: RooflineParams, device: str, roofs: list[Roof]) -> tuple[pd.DataFrame, str]:
    """Return points of networks and operators, measured now and stored, or read back and compared anew; and a note."""
    models = p.models.split(",")
    if p.source == "replay":
        stored, note = isolated.stored_points(device, p.dtype, roofs[0].hardware_id, p.reference)
        chosen = stored.query("kind == 'network' and arch in @models and batch_size == @p.batch_size "
                              f"or kind == 'operator' and arch == {models[0]!r}")
        if len(stored) and chosen.empty:
            measured = stored.query("kind == 'network'")["label"]
            raise InputError(f"the reference has no {p.models} with a batch of {p.batch_size}; it has: {choices(measured)}")
        return roofline.points(chosen, roofs), note
    work, facts = isolated.measure_work(models, p.batch_size, p.dtype, device, p.budget_s)
    level = [roofs[0].level_of(row.footprint) if row.kind == "operator" else row.level for row in work.itertuples()]
    frame = roofline.points(work.assign(level=level), roofs)  # what is timed repeatedly: the nearest level that holds it
    frame.attrs["failed"] = facts["failed"]
    if frame.empty:
        return frame, "Nothing usable was measured: the machine is too busy or has no roof of this element type."
    return frame, f"Points measured now: {isolated.save_points(frame, facts).name}."


def _counted(p: RooflineParams, roofs: list[Roof], vendor: list[Roof]) -> pd.DataFrame:
    """Return the points of an Nsight Compute file, under the measured roof of a CUDA device, else under the vendor's."""
    above = roofs if roofs[0].backend == "cuda" else vendor
    if not p.nsight:
        return pd.DataFrame(columns=store.columns("points"))
    if not above:
        raise InputError("what Nsight counted was on a GPU: give device=cuda:0, or name the GPU with vendor=...")
    counted = nsight.read(Path(p.nsight))
    points = roofline.points(counted.work(above[0].hardware_id), above)
    points.attrs["warning"] = counted.warning
    return points


def study(p: RooflineParams) -> Study:
    """Gather roofs and points of one device, measured now or replayed from the reference, as ``source`` says.

    Raises InputError for a device, model, vendor's device or file that is not there.
    """
    device = str(machine.device(p.device)) if p.source == "measure" else archive.replayed_device(p.device)
    vendor = roofline.roofs(roofline.vendor_ceilings(definitions.vendor_device(p.vendor))) if p.vendor else []
    limits = _ceilings(p, device)
    roofs = roofline.roofs(limits.table, limits.overheads)
    runs = archive.runs(p.source, p.reference)
    chosen, left = newest(runs, roofs[0], limits.table["software_id"][0])
    work, parts, skipped = step_rows(chosen)
    steps = roofline.points(work, roofs) if len(work) else pd.DataFrame(columns=store.columns("points"))
    measured, note = _isolated(p, device, roofs)
    for part in (steps, measured):
        left |= {f"points {reason}": left.get(f"points {reason}", 0) + count
                 for reason, count in part.attrs.get("left out", {}).items()}
    nets = measured.query("kind == 'network'")
    parts |= {row.label: network_work(row.arch, row.batch_size, row.precision, device) for row in nets.itertuples()}
    counted = _counted(p, roofs, vendor)
    return Study(roofs, vendor, steps, nets, measured.query("kind == 'operator'"), counted, runs,
                 parts, " ".join(filter(None, (limits.note, limits.warning, note, counted.attrs.get("warning")))),
                 (*(f"{count} {reason}" for reason, count in left.items() if count), *skipped,
                  *measured.attrs.get("failed", ())))


def against_operators(results: Study) -> pd.DataFrame:
    """Return each step and network beside what its roof, and the sum of its operators' own roofs, would take, in ms.

    An operator left of the ridge point waits for memory while the next one computes, so that the sum is the tighter of the two.
    """
    rows = []
    for row in results.whole.itertuples():
        roof = results.roof(row.roof_dtype)
        seconds = roofline.seconds(results.parts[row.label], roof).sum()
        memory = roofline.memory_share(results.parts[row.label], roof)
        rows.append((row.label, row.elapsed_sec * 1e3, row.flops / row.attainable_gflops / 1e6, seconds * 1e3, memory * 100,
                     row.elapsed_sec / seconds))
    return pd.DataFrame(rows, columns=COMPARED)
