"""Networks and their operators timed in isolation: the forward pass of a model, and each distinct operator in it."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils._pytree import tree_map

from lib import locks, paths, store
from lib.measure import disturbance, machine
from lib.measure.archive import folders, newest
from lib.measure.budget import ROUNDS, Budget, sampled
from lib.measure.statistics import Timing, worst
from lib.measure.timing import Call, measure
from lib.work import dtypes, networks, user_code
from lib.work.graph import capture, counts, families, ops, rebuild

OPERATORS = 20
_NETWORKS_SHARE = 0.4  # of the budget
_BALANCE = 10.0  # FLOPs that cost as much as a byte, about: only to choose which operators are worth timing


@dataclass(frozen=True)
class Item:
    """One thing to time: its row of work without the time, and how to build the call."""

    row: store.Facts
    build: Callable[[], Call]


def _items(nets: list[networks.Network], precision: str, device: torch.device) -> list[Item]:
    """Return the forward pass of each network, and the costliest operators of the first in isolation, as things to time."""
    ids, dtype = machine.ids(), dtypes.torch_dtype(precision)

    def forward(net: networks.Network) -> Call:
        model = user_code.in_mode(net.build().to(device, dtype), False)
        placed, named = tree_map(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype),
                                 net.made("cpu"))

        def call() -> None:
            with torch.inference_mode():
                model(*placed, **named)
        return call

    def item(net: networks.Network, build: Callable[[], Call], work: Sequence[ops.Op], **row: Any) -> Item:
        calls = sum(op.short not in counts.VIEWS for op in work)
        return Item({"env": ids["hardware_id"], "backend": device.type, "precision": precision, "bytes_source": "compulsory",
                     **ids, "arch": net.name, "batch_size": net.shape[0], "calls": calls, "occurrences": 1,
                     "flops": sum(counts.flops(op) for op in work), "level": "", "roof_dtype": precision,
                     "bytes": sum(counts.compulsory_bytes(op) for op in work), **row}, build)

    graphs = [capture.of_network(net, dtype=dtypes.torch_name(precision), device=str(device)) for net in nets]
    items = [item(net, partial(forward, net), graph.ops, kind="network", family=net.name,
                  label=f"{net.name} b{net.shape[0]}") for net, graph in zip(nets, graphs, strict=True)]
    for op, occurrences in _costliest(graphs[0]):
        family, short = _named(op)
        items.append(item(nets[0], partial(rebuild.runnable, [op], device), [op], kind="operator", calls=1, family=family,
                          label=f"{family} {short}", occurrences=occurrences, footprint=footprint(op)))
    return items


def _named(op: ops.Op) -> tuple[str, str]:
    """Return the family of an operator and a short name of this very one."""
    family, p = families.describe(op) or (op.short, {})
    if family.startswith("conv"):
        family = "depthwise conv" if p["groups"] > 1 and p["groups"] == p["in_channels"] else family
        window = f"{p['kernel_h']}x{p['kernel_w']}/{p['stride_h']}"
        return family, f"{window} {p['in_channels']}>{p['out_channels']} at {p['height']}"
    if "gemm_m" in p:
        return family, f"{p['gemm_m']}x{p['gemm_k']}x{p['gemm_n']}"
    shape = op.outputs[0].shape if op.outputs else ()
    return family, "x".join(map(str, shape))


def _costliest(graph: ops.Graph) -> list[tuple[ops.Op, int]]:
    """Return OPERATORS distinct operators with their occurrences: the two costliest of each family, then what costs most."""
    working = [op for op in graph.ops if counts.flops(op) > 0]
    seen, first = Counter(working), {op: op for op in reversed(working)}  # the first of equal ones has its outputs

    def cost(op: ops.Op) -> float:
        return seen[op] * (counts.flops(op) + _BALANCE * counts.compulsory_bytes(op))

    ranked = sorted(first.values(), key=cost, reverse=True)
    places = pd.Series([_named(op)[0] for op in ranked], dtype=str)
    beyond_two = places.groupby(places).cumcount() > 1
    chosen = beyond_two.sort_values(kind="stable").index[:OPERATORS].sort_values()
    return [(ranked[index], seen[ranked[index]]) for index in chosen]


def footprint(op: ops.Op) -> int:
    """Return the bytes of memory that ``op`` touches: what it writes in place over what it read counts once."""
    touched = {}
    for number, spec in enumerate((*op.tensors, *op.outputs)):
        key = spec.storage if spec.storage >= 0 else -1 - number
        touched[key] = max(touched.get(key, 0), spec.bytes)
    return sum(touched.values())


def _timed(items: list[Item], device: torch.device, budget: Budget) -> tuple[list[Timing], list[str]]:
    """Time every item in ROUNDS rounds, each in a random order; return the samples of each, and what could not run.

    On a crowded machine later rounds are dropped once the budget is spent; the first always runs. An operator that the device
    does not have stays without samples; a network that it cannot run raises InputError.
    """
    counts_by_kind, total_s = Counter(item.row["kind"] for item in items), budget.left_s
    shares = {"network": _NETWORKS_SHARE, "operator": 1 - _NETWORKS_SHARE}
    programs = {}
    failed = {}

    def visit(index: int, _: float) -> Timing | None:
        item, kind = items[index], items[index].row["kind"]
        fails = f"{item.row['label']} does not run on {device}"
        if index in failed:
            return None
        try:
            with user_code.running(fails) if kind == "network" else nullcontext():
                call = programs.get(index) or item.build()
                if kind == "network":
                    programs[index] = call  # its weights take long to make
                with torch.inference_mode():
                    share_s = min(shares[kind] * total_s / counts_by_kind[kind] / ROUNDS, budget.left_s)
                    return measure(call, device, share_s, least=3, most_s=2 * share_s, graph=kind == "operator")
        except RuntimeError as error:
            failed[index] = f"{fails}: {str(error).splitlines()[0]}"
            return None

    return sampled(len(items), budget, visit, "timing"), list(failed.values())


def measure_work(models: list[str], batch_size: int, precision: str, device_id: str,
                 budget_s: float) -> tuple[pd.DataFrame, store.Facts]:
    """Time the forward pass of each of ``models`` and the costliest operators of the first, in about ``budget_s``.

    Returns a row each (columns WORK of lib.predict.analytic.roofline) and the provenance. Raises InputError for an unknown
    model, or a dtype that the device does not take.
    """
    device, budget = machine.device(device_id), Budget(budget_s)
    machine.use(device)
    items = _items([networks.network(name, batch_size) for name in models], precision, device)
    threads = torch.get_num_threads()
    with locks.device(str(device)):
        quiet = disturbance.wait_for_quiet(threads, patience_s=budget.patience_s, device=str(device))
        watch = disturbance.LoadWatch(str(device))
        samples, failed = _timed(items, device, budget)
        seen = watch.reading()
    crowded, rows = seen.verdict(threads), []
    for row, timing in ((item.row, timing) for item, timing in zip(items, samples, strict=True) if timing.n):
        launched = row["kind"] == "operator" and device.type == "cuda" and not timing.graphed
        rows.append({**row, "label": row["label"] + ", without a CUDA graph" * launched,
                     "elapsed_sec": timing.median_ms / 1e3, "verdict": worst(timing.verdict, crowded)})
    facts = {"started_utc": store.utc_now(), "notebook": "05_roofline", "load_at_start": asdict(quiet),
             "load_at_end": asdict(seen),
             "parameters": {"models": ",".join(models), "batch_size": batch_size, "dtype": precision, "device": str(device),
                            "budget_s": budget_s}, "failed": failed, **machine.identity()}
    return pd.DataFrame(rows), facts


def save_points(frame: pd.DataFrame, facts: store.Facts) -> Path:
    """Write a table ``points`` to ``data/points/`` with its provenance; return its path."""
    stem = f"points_{facts['parameters']['device'].replace(':', '-')}_{facts['parameters']['dtype']}"
    with locks.writer(paths.POINTS, locks.PATIENCE_S):  # another device or host may write its points at the same time
        path = store.write(frame, store.fresh_file(paths.POINTS, stem), "points")
    store.write_meta(path, "points", **facts)
    return path


def stored_points(device: str, precision: str, hardware_id: str,
                  reference: str = "") -> tuple[pd.DataFrame, str]:
    """Return the newest stored ``points`` of a reference machine by its hardware id, and a note of when they were measured.

    The table is empty, and the note says so, when the reference has none of that device and element type.
    """
    stem = f"points_{device.replace(':', '-')}_{precision}"
    for folder in folders("replay", reference):
        if last := newest(folder / "points", stem, hardware_id=hardware_id):
            facts, path = last
            return store.read(path, "points"), f"Points of {path.name}, measured {facts['started_utc']}."
    return store.read_all([], "points"), f"The reference has no points of networks and operators on {device} in {precision}."
