"""Parameters, saved activations, FLOPs and compulsory bytes of a training step, by layer and by network, from shapes alone.

Nothing is run: the operators come from ``capture`` and their work from ``counts``. FLOPs count a multiply-add as 2 and
include element-wise work; ``macs`` are the multiply-adds of convolutions, matrix products and attention alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lib import files, paths, store
from lib.config.definitions import workloads
from lib.tables import columns
from lib.work import networks
from lib.work.graph import capture, counts
from lib.work.graph.ops import Graph, Op
from lib.work.networks import Network

LOSS, UNUSED = "loss", "unused"
_ROOT = "network"
_SUMS = "calls params activation_bytes flops_forward flops_backward bytes_forward bytes_backward".split()


@dataclass(frozen=True)
class Analysis:
    """The captured training step of one network on its batch."""

    network: Network
    graph: Graph

    @property
    def steps(self) -> Iterator[tuple[Op, str, str]]:
        """Yield each operator with its layer ('' is the network's own forward, 'loss' the loss) and its phase.

        The one that makes the first gradient runs outside of the backward pass, but belongs to it.
        """
        first = next((number for number, op in enumerate(self.graph.ops) if op.phase == "backward"), 0)
        for number, op in enumerate(self.graph.ops):
            seed = number == first - 1 and op.short == "ones_like"
            layer = op.module.removeprefix(_ROOT).removeprefix(".") if op.module else LOSS
            yield op, layer, "backward" if seed else op.phase

    def matrix_flops(self, phase: str) -> int:
        """Return the FLOPs of convolutions, matrix products and attention in one phase."""
        return sum(counts.matrix_flops(op) for op in self.graph.ops if op.phase == phase)

    @property
    def macs(self) -> int:
        """Return the multiply-adds of the forward pass."""
        return self.matrix_flops("forward") // 2

    @cached_property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """Give bytes and elements of each storage: of the widest view that an operator sees of it."""
        sizes = {}
        for op in self.graph.ops:
            for spec in (*op.tensors, *op.outputs):
                sizes[spec.storage] = max(sizes.get(spec.storage, (0, 0)), (spec.bytes, spec.bytes // spec.itemsize))
        return sizes

    @cached_property
    def saved(self) -> set[int]:
        """Give the storages that a backward operator reads; one that fills takes only a shape."""
        return {spec.storage for op, _, phase in self.steps if phase == "backward" and op.short not in counts.FILLS
                for spec in op.tensors}


@lru_cache(maxsize=256)
def analyse(name: str, batch_size: int = 0, input_shape: str = "") -> Analysis:
    """Capture a training step (forward, loss, backward) of the network ``name``, see ``networks.network``.

    Raises InputError for an unknown name, a shape that is none, or one that the network cannot take.
    """
    network = networks.network(name, batch_size, input_shape)
    return Analysis(network, capture.of_network(network, "train", root=_ROOT))


def rows_of(analysis: Analysis) -> pd.DataFrame:
    """Return the ``complexity`` table of a captured step: one row per layer and operator, without views.

    A parameter is counted where it is first used; those never used are one row of operator ``unused``. A row's
    activations are what it makes in the forward pass and the backward pass reads again. FLOPs that are not known are NaN.
    """
    used, made, rows = set(), set(), {}
    for op, layer, phase in analysis.steps:
        if op.short in counts.VIEWS:
            continue
        row = rows.setdefault((layer, op.short), dict.fromkeys(_SUMS, 0))
        row["calls"] += 1
        row[f"flops_{phase}"] += counts.flops(op)
        row[f"bytes_{phase}"] += counts.compulsory_bytes(op)
        if phase == "forward":
            parameters = {spec.storage for spec in op.tensors if spec.kind == "parameter"} - used
            outputs = {spec.storage for spec in op.outputs if spec.kind == "activation"} - made
            used, made = used | parameters, made | outputs
            row["params"] += sum(analysis.sizes[storage][1] for storage in parameters)
            row["activation_bytes"] += sum(analysis.sizes[storage][0] for storage in outputs & analysis.saved)
    unused = analysis.graph.parameters - sum(row["params"] for row in rows.values())
    if unused:
        rows["", UNUSED] = dict.fromkeys(_SUMS, 0) | {"params": unused}
    frame = pd.DataFrame(rows.values(), pd.MultiIndex.from_tuples(rows, names=["layer", "op"])).reset_index()
    frame = frame.assign(network=analysis.network.name, batch_size=analysis.network.shape[0])
    return frame[columns("complexity")].astype(dict.fromkeys(("flops_forward", "flops_backward"), float))


def shape_for(name: str, input_shape: str) -> str:
    """Return ``input_shape`` for a model; a workload's shape is its own."""
    return "" if name in workloads() else input_shape


def sums_of(analysis: Analysis, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the sums of an analysis from its ``complexity`` rows: parameters, MACs, FLOPs and bytes of each pass, MB."""
    sums, (batch, *shape), graph = rows[_SUMS].sum(skipna=False), analysis.network.shape, analysis.graph
    forward, backward = sums["flops_forward"], sums["flops_backward"]
    uncounted = sorted({op.name for op in graph.ops if not counts.is_counted(op)})
    return {"network": analysis.network.name, "batch_size": batch, "input": "x".join(map(str, shape)),
            "params": graph.parameters, "macs_forward": analysis.macs, "flops_forward": forward,
            "flops_backward": backward, "backward_over_forward": backward / forward if forward else float("nan"),
            "bytes_forward": int(sums["bytes_forward"]), "bytes_backward": int(sums["bytes_backward"]),
            "flops_per_byte": (forward + backward) / (sums["bytes_forward"] + sums["bytes_backward"]),
            "parameter_mb": graph.parameter_bytes / 1e6, "activation_mb": sums["activation_bytes"] / 1e6,
            "uncounted": ", ".join(uncounted)}


def by_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ``complexity`` table of one network and batch size summed over the operators of each layer."""
    layers = rows.groupby("layer", sort=False)[_SUMS].agg(lambda values: values.sum(skipna=False)).reset_index()
    return layers.assign(flops_per_byte=layers["flops_forward"] / layers["bytes_forward"].where(layers["bytes_forward"] > 0))


def original_summary(sums: pd.DataFrame) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return totals as ``[network][batch size]``, in the layout and with the names of ``model_summaries/summary.json``.

    There FLOPs are twice the multiply-adds; all FLOPs, and what else is known, follow under names of their own.
    """
    summary = {}
    for row in sums.itertuples():
        macs, batch = row.macs_forward, row.batch_size
        forward, backward = (None if pd.isna(flops) else flops for flops in (row.flops_forward, row.flops_backward))
        summary.setdefault(row.network, {})[str(batch)] = {
            "params": row.params, "mult_adds_per_batch_forward": macs, "mult_adds_per_sample_forward": macs / batch,
            "flops_per_batch_forward": 2 * macs, "flops_per_sample_forward": 2 * macs / batch,
            "all_flops_per_batch_forward": forward, "all_flops_per_batch_backward": backward,
            "bytes_per_batch_forward": row.bytes_forward, "bytes_per_batch_backward": row.bytes_backward,
            "activation_bytes_per_batch": round(row.activation_mb * 1e6)}
    return summary


def text_summary(rows: pd.DataFrame, sums: Any) -> str:
    """Return one network at one batch size as text: a line a layer, then its sums (a row of their table)."""
    layers = by_layer(rows).drop(columns="calls").replace({"layer": {"": "(the network itself)"}})
    formats = dict.fromkeys(_SUMS[1:], "{:,.0f}".format) | {"flops_per_byte": "{:,.2f}".format}
    shown = layers.to_string(index=False, formatters=formats, na_rep="unknown")
    step = sums.flops_forward + sums.flops_backward
    return (f"{sums.network}, batch {sums.batch_size} of {sums.input}\n\n{shown}\n\n"
            f"parameters                {sums.params:,} ({sums.parameter_mb:,.2f} MB)\n"
            f"multiply-adds, forward    {sums.macs_forward:,} ({sums.macs_forward / sums.batch_size:,.0f} a sample)\n"
            f"FLOPs, forward            {sums.flops_forward:,.0f}\n"
            f"FLOPs, backward           {sums.flops_backward:,.0f} ({sums.backward_over_forward:.3f} of the forward's)\n"
            f"FLOPs, training step      {step:,.0f} ({sums.flops_per_byte:.2f} a compulsory byte)\n"
            f"saved activations         {sums.activation_mb:,.2f} MB\n"
            f"FLOPs not known           {sums.uncounted or 'none'}\n")


def save(rows: pd.DataFrame, sums: pd.DataFrame, **facts: Any) -> list[Path]:
    """Write complexity.csv, summary.json and a text a network and batch size to data/complexity/; return the files.

    Each is replaced in one step. ``rows`` are ``complexity`` tables, ``sums`` a table of ``sums_of``.
    """
    folder = paths.COMPLEXITY
    target = store.write(rows, folder / "complexity.csv", "complexity", derived=True)
    written = [target, store.write_meta(target, "complexity", torch=torch.__version__, **facts),
               store.write_json(original_summary(sums), folder / "summary.json")]
    for row in sums.itertuples():
        part = rows[(rows["network"] == row.network) & (rows["batch_size"] == row.batch_size)]
        name = re.sub(r"[^\w.-]", "-", row.network)
        written.append(files.replace(folder / f"{name}_b{row.batch_size}.txt", text_summary(part, row).encode()))
    return written
