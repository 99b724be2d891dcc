"""Points of a device's roofline: training steps, networks, operators and counted kernels, measured now or replayed."""

from collections.abc import Iterable
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
from lib.measure.training import matrix, throughput
from lib.predict.analytic import nsight, roofline
from lib.predict.analytic.roofline import Roof
from lib.work import networks
from lib.work.building import fakes
from lib.work.dtypes import torch_name
from lib.work.graph import capture, counts, ops
from lib.work.workloads import prepare

CEILINGS_S = 12.0


@dataclass(frozen=True)
class RooflinePoints:
    """Roofs and points of one device.

    Attributes:
        roofs: the measured roofs, see ``roofline.roof_table``.
        vendor: the roofs that a vendor states, in the same columns; no rows without a vendor.
        points: table ``points``, one row per training step, network, operator and counted kernel (``kind``).
        parts: FLOPs and bytes (n, 2) of the operators of each step and network, by label.
        runs: table ``runs``, from which the steps were chosen.
        note: where the ceilings and points come from.
        left_out: why work has no point, one reason each.
    """

    roofs: pd.DataFrame
    vendor: pd.DataFrame
    points: pd.DataFrame
    parts: dict[str, np.ndarray]
    runs: pd.DataFrame
    note: str
    left_out: list[str]


def collect(p: RooflineParams) -> RooflinePoints:
    """Collect roofs and points of one device, measured now or replayed from the reference.

    Raises InputError for a device, model, element type, vendor's device or file that does not exist.
    """
    device = str(machine.device(p.device)) if p.source == "measure" else archive.replayed_device(p.device)
    vendor = roofline.roofs(roofline.vendor_ceilings(definitions.vendor_device(p.vendor))) if p.vendor else []
    limits = _ceilings(p, device)
    roofs = roofline.roofs(limits.table, limits.overheads)
    if p.dtype not in (dtypes := [roof.dtype for roof in roofs]):
        raise InputError(f"no {p.dtype} roof was measured on {device}; there are: {choices(dtypes)}")
    runs = archive.runs(p.source, p.reference)
    chosen, left_out = newest_runs(runs, roofs[0], limits.table["software_id"][0])
    work, parts, skipped = step_work(chosen)
    steps = roofline.points(work, roofs) if len(work) else store.read_all([], "points")
    timed, note = _networks_and_operators(p, device, roofs)
    for row in timed[timed["kind"] == "network"].itertuples():
        net = networks.network(row.arch, row.batch_size)
        parts[row.label] = _work(capture.of_network(net, dtype=torch_name(row.precision), device=device))
    counted, warning = _counted(p, roofs, vendor)
    filled = [part for part in (steps, timed, counted) if len(part)]
    reasons = [f"{count} points {reason}" for part in (steps, timed)
               for reason, count in part.attrs.get("left out", {}).items()]
    return RooflinePoints(
        roofline.roof_table(roofs), roofline.roof_table(vendor),
        pd.concat(filled, ignore_index=True) if filled else steps, parts, runs,
        " ".join(text for text in (limits.note, limits.warning, note, warning) if text),
        [*left_out, *reasons, *skipped, *timed.attrs.get("failed", [])])


# --------------------------------------------------------------------------------------------- training steps

def newest_runs(runs: pd.DataFrame, roof: Roof, software_id: str) -> tuple[pd.DataFrame, list[str]]:
    """Select the newest usable run of each configuration and environment on the roof's device and software.

    Also returns how many runs were left out, one reason each.
    """
    here = runs[(runs["hardware_id"] == roof.hardware_id) & (runs["backend"] == roof.backend)]
    same, keys = here[here["software_id"] == software_id], ["workload_id", "arch", "batch_size", "precision"]
    newest, unusable = throughput.newest(same.assign(env=throughput.environment(same)), ["env", *keys, "channels_last"])
    counted = {"runs of other software": len(here) - len(same), "unusable runs": unusable}
    return newest.sort_values(keys), [f"{count} {reason}" for reason, count in counted.items() if count]


def step_work(runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, np.ndarray], list[str]]:
    """Count the work of one training step per run.

    The time is that of the pipelined step, loader included. Bytes are compulsory; under autocast, which casts back
    and forth, they are estimated as if all tensors had its type.

    Returns rows of work for ``roofline.points``, the operators' FLOPs and bytes by label, and why runs have no row.
    """
    rows, parts, skipped = [], {}, []
    for run in runs.assign(env=throughput.environment(runs)).itertuples(index=False):
        try:
            operators = _step_operators(run)
        except InputError as error:
            skipped.append(f"{run.run_id}: {error}")
            continue
        label, is_fp32 = _step_name(run), run.precision == "fp32"
        parts[label] = operators
        rows.append({**run._asdict(), "label": label, "flops": operators[:, 0].sum(), "bytes": operators[:, 1].sum(),
                     "calls": len(operators), "elapsed_sec": run.elapsed_sec / run.measured_iters, "kind": "step",
                     "bytes_source": "compulsory" if is_fp32 else "estimated", "family": f"{run.arch} step",
                     "occurrences": 1, "level": "", "roof_dtype": "tf32" if run.tf32 and is_fp32 else run.precision})
    return pd.DataFrame(rows, columns=roofline.WORK), parts, skipped


def _step_operators(run: Any) -> np.ndarray:
    """Count FLOPs and compulsory bytes (n, 2) of the operators of one training step, from their shapes.

    The optimizer counts once in as many steps as gradients are accumulated over. Raises InputError for operators of
    unknown FLOPs.
    """
    task = prepare(matrix.workload_of(run.workload_id, run.arch, run.batch_size))
    graph = capture.capture(fakes.build(task.model), (task.workload.batch_size, *task.shape), "train", run.optimizer,
                            dtype=torch_name(run.precision), channels_last=bool(run.channels_last), device=run.backend)
    unknown = sorted({op.short for op in graph.ops if not counts.is_counted(op)})
    if unknown:
        raise InputError(f"{task.workload.id}: the FLOPs of {choices(unknown)} are not known")
    share = {"optimizer": 1 / run.grad_accum_steps}
    return _work(graph) * np.array([[share.get(op.phase, 1.0)] for op in _computing(graph)])


def _step_name(run: Any) -> str:
    """Name a step: the workload's id, with what differs from its definition."""
    stated = definitions.workloads().get(run.workload_id)
    words = [stated.id if stated else run.arch]
    if not stated or stated.batch_size != run.batch_size:
        words.append(f"b{run.batch_size}")
    if run.precision != "fp32":
        words.append(run.precision)
    if run.channels_last:
        words.append("channels_last")
    return " ".join(words)


def _computing(graph: ops.Graph) -> Iterable[ops.Op]:
    """List the operators that do work; views do none."""
    return [op for op in graph.ops if op.short not in counts.VIEWS]


def _work(graph: ops.Graph) -> np.ndarray:
    """Count FLOPs and compulsory bytes (n, 2) of the operators of a graph."""
    return np.array([(counts.flops(op), counts.compulsory_bytes(op)) for op in _computing(graph)])


# --------------------------------------------------------------------------------------------- measured or replayed

def _ceilings(p: RooflineParams, device: str) -> ceilings.Ceilings:
    """Read the newest ceilings of this hardware and software; measure them where there are none."""
    parameters = MachineParams(source=p.source, reference=p.reference, device=device, budget_s=CEILINGS_S)
    if p.source == "replay":
        return ceilings.replay_ceilings(parameters)
    return ceilings.saved(device) or ceilings.measure_ceilings(parameters)


def _networks_and_operators(p: RooflineParams, device: str, roofs: list[Roof]) -> tuple[pd.DataFrame, str]:
    """Time networks and operators and save their points, or read stored points; also return a note."""
    models = p.models.split(",")
    if p.source == "replay":
        stored, note = isolated.stored_points(device, p.dtype, roofs[0].hardware_id, p.reference)
        is_network = stored["kind"] == "network"
        asked = is_network & stored["arch"].isin(models) & (stored["batch_size"] == p.batch_size)
        asked |= (stored["kind"] == "operator") & (stored["arch"] == models[0])
        if len(stored) and not asked.any():
            raise InputError(f"the reference has no {p.models} with a batch of {p.batch_size}; it has: "
                             f"{choices(stored.loc[is_network, 'label'])}")
        return roofline.points(stored[asked], roofs), note
    work, facts = isolated.measure_work(models, p.batch_size, p.dtype, device, p.budget_s)
    level = [roofs[0].level_of(row.footprint) if row.kind == "operator" else row.level for row in work.itertuples()]
    frame = roofline.points(work.assign(level=level), roofs)  # repeated work is served from the nearest level that holds it
    frame.attrs["failed"] = facts["failed"]
    if frame.empty:
        return frame, "Nothing usable was measured: the machine is too busy."
    return frame, f"Points measured now: {isolated.save_points(frame, facts).name}."


def _counted(p: RooflineParams, roofs: list[Roof], vendor: list[Roof]) -> tuple[pd.DataFrame, str]:
    """Read the points of an Nsight Compute file, below the roof of a CUDA device, else a vendor's; also a warning."""
    above = roofs if roofs[0].backend == "cuda" else vendor
    if not p.nsight:
        return store.read_all([], "points"), ""
    if not above:
        raise InputError("what Nsight counted was on a GPU: give device=cuda:0, or name the GPU with vendor=...")
    counted = nsight.read(Path(p.nsight))
    return roofline.points(counted.work(above[0].hardware_id), above), counted.warning
