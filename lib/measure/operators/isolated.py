"""Forward passes of networks, and the costliest operators of the first, timed in isolation."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

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
_BALANCE = 10.0  # FLOPs that cost as much as a byte: only to choose operators


@dataclass(frozen=True)
class Item:
    """One thing to time: its row of work without the time, and how to build the call."""

    row: store.Facts
    build: Callable[[], Call]


def _forward(net: networks.Network, device: torch.device, dtype: torch.dtype) -> Call:
    model = user_code.in_mode(net.build().to(device, dtype), False)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    placed, named = tree_map(place, net.made("cpu"))
    return torch.inference_mode()(lambda: model(*placed, **named))


def _items(nets: list[networks.Network], precision: str, device: torch.device) -> list[Item]:
    """Return what is timed: each forward pass, and the costliest operators of the first."""
    ids, dtype, items = machine.ids(), dtypes.torch_dtype(precision), []

    def add(net: networks.Network, build: Callable[[], Call], work: list[ops.Op], **row: object) -> None:
        items.append(Item({
            **ids, "env": ids["hardware_id"], "backend": device.type, "precision": precision, "level": "",
            "roof_dtype": precision, "bytes_source": "compulsory", "arch": net.name, "occurrences": 1,
            "batch_size": net.shape[0], "calls": sum(op.short not in counts.VIEWS for op in work),
            "flops": sum(map(counts.flops, work)), "bytes": sum(map(counts.compulsory_bytes, work)),
            **row}, build))

    graphs = [capture.of_network(net, dtype=dtypes.torch_name(precision), device=str(device))
              for net in nets]
    for net, graph in zip(nets, graphs, strict=True):
        add(net, partial(_forward, net, device, dtype), graph.ops, kind="network", family=net.name,
            label=f"{net.name} b{net.shape[0]}")
    for op, occurrences in _costliest(graphs[0]):
        family, short = _named(op)
        add(nets[0], partial(rebuild.runnable, [op], device), [op], kind="operator", calls=1, family=family,
            label=f"{family} {short}", occurrences=occurrences, footprint=footprint(op))
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
    return family, "x".join(map(str, op.outputs[0].shape if op.outputs else ()))


def _costliest(graph: ops.Graph) -> list[tuple[ops.Op, int]]:
    """Return OPERATORS distinct operators with their occurrences.

    They are the two costliest of each family, then what costs most.
    """
    working = [op for op in graph.ops if counts.flops(op) > 0]
    occurrences = Counter(working)
    table = pd.DataFrame({"op": list(occurrences), "count": list(occurrences.values())})
    table["cost"] = table["count"] * [counts.flops(op) + _BALANCE * counts.compulsory_bytes(op)
                                      for op in table["op"]]
    table["family"] = [_named(op)[0] for op in table["op"]]
    table = table.sort_values("cost", ascending=False, kind="stable", ignore_index=True)
    table["beyond_two"] = table.groupby("family").cumcount() > 1
    chosen = table.sort_values("beyond_two", kind="stable").head(OPERATORS).sort_index()
    return list(zip(chosen["op"], chosen["count"], strict=True))


def footprint(op: ops.Op) -> int:
    """Return the bytes of memory that ``op`` touches; what it writes in place counts once."""
    touched = {}
    for number, spec in enumerate((*op.tensors, *op.outputs)):
        key = spec.storage if spec.storage >= 0 else -1 - number
        touched[key] = max(touched.get(key, 0), spec.bytes)
    return sum(touched.values())


def _timed(items: list[Item], device: torch.device,
           budget: Budget) -> tuple[list[Timing], list[str]]:
    """Time every item in ROUNDS rounds, each in a random order; also return what could not run.

    Later rounds are dropped once the budget is spent. An operator that the device lacks has no
    samples; a network that it cannot run raises InputError.
    """
    of_kind, total_s = Counter(item.row["kind"] for item in items), budget.left_s
    shares = {"network": _NETWORKS_SHARE, "operator": 1 - _NETWORKS_SHARE}
    programs, failed = {}, {}

    def visit(index: int, _: float) -> Timing | None:
        item, kind = items[index], items[index].row["kind"]
        if index in failed:
            return None
        fails = f"{item.row['label']} does not run on {device}"
        try:
            with user_code.running(fails) if kind == "network" else nullcontext():
                call = programs.get(index) or item.build()
                if kind == "network":
                    programs[index] = call  # its weights take long to make
                with torch.inference_mode():
                    share_s = min(shares[kind] * total_s / of_kind[kind] / ROUNDS, budget.left_s)
                    return measure(call, device, share_s, least=3, most_s=2 * share_s,
                                   graph=kind == "operator")
        except RuntimeError as error:
            failed[index] = f"{fails}: {str(error).splitlines()[0]}"
            return None

    return sampled(len(items), budget, visit, "timing"), list(failed.values())


def measure_work(models: list[str], batch_size: int, precision: str, device_id: str,
                 budget_s: float) -> tuple[pd.DataFrame, store.Facts]:
    """Time the forward pass of each of ``models`` and the costliest operators of the first.

    Returns one row each (columns WORK of lib.predict.analytic.roofline) and the provenance. Raises
    InputError for an unknown model, or a dtype that the device does not take.
    """
    device, budget = machine.device(device_id), Budget(budget_s)
    machine.use(device)
    items = _items([networks.network(name, batch_size) for name in models], precision, device)
    with locks.device(str(device)):
        quiet = disturbance.wait_for_quiet(torch.get_num_threads(), budget.patience_s, device=str(device))
        watch = disturbance.LoadWatch(str(device))
        timings, failed = _timed(items, device, budget)
        seen = watch.reading()
    crowded, rows = seen.verdict(torch.get_num_threads()), []
    for item, timing in zip(items, timings, strict=True):
        if not timing.n:
            continue
        row = {**item.row, "elapsed_sec": timing.median_ms / 1e3, "verdict": worst(timing.verdict, crowded)}
        if row["kind"] == "operator" and device.type == "cuda" and not timing.graphed:
            row["label"] += ", without a CUDA graph"
        rows.append(row)
    parameters = {"models": ",".join(models), "batch_size": batch_size, "dtype": precision,
                  "device": str(device), "budget_s": budget_s}
    return pd.DataFrame(rows), {
        "started_utc": store.utc_now(), "notebook": "05_roofline", "load_at_start": asdict(quiet),
        "load_at_end": asdict(seen), "parameters": parameters, "failed": failed, **machine.identity()}


def save_points(frame: pd.DataFrame, facts: store.Facts) -> Path:
    """Write a table ``points`` to ``data/points/`` with its provenance; return its path."""
    stem = f"points_{facts['parameters']['device'].replace(':', '-')}_{facts['parameters']['dtype']}"
    with locks.writer(paths.POINTS, locks.PATIENCE_S):  # another process may write points as well
        path = store.write(frame, store.fresh_file(paths.POINTS, stem), "points")
    store.write_meta(path, "points", **facts)
    return path


def stored_points(device: str, precision: str, hardware_id: str,
                  reference: str = "") -> tuple[pd.DataFrame, str]:
    """Return the newest stored ``points`` of a reference machine by its hardware id, and a note.

    The table is empty where the reference has none of that device and element type.
    """
    stem = f"points_{device.replace(':', '-')}_{precision}"
    for folder in folders("replay", reference):
        if last := newest(folder / "points", stem, hardware_id=hardware_id):
            facts, path = last
            note = f"Points of {path.name}, measured {facts['started_utc']}."
            return store.read(path, "points"), note
    return store.read_all([], "points"), ("The reference has no points of networks and operators on "
                                          f"{device} in {precision}.")
