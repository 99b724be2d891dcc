"""A captured network as rows of work on a GPU, linear in the batch, as automatic mixed precision runs it.

Capture is in fp32: which tensors would be in 16 bits, and what is cast from one to the other, follows from torch's lists of
what autocast computes in which (torch/csrc/autocast_mode: ``AT_FORALL_LOWER_PRECISION_FP`` and ``AT_FORALL_FP32``).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
from torch import nn

from lib.predict.gpu import fusion
from lib.predict.gpu.kinds import (
    ALWAYS,
    CONVOLVING,
    GEMM,
    KERNEL_KINDS,
    LAYOUT_KEPT,
    REDUCED,
    gemm,
    is_dense,
    kind_of,
    reduction,
    serial,
)
from lib.work.graph import capture, counts, recurrent
from lib.work.graph.ops import Graph, Op, TensorSpec
from lib.work.networks import Network

BATCH = 2  # at which networks are captured at least: no size of the batch is 1
SIZES = ("scales", "flops", *fusion.traffic((), ()), *GEMM, *REDUCED, "launches", "serial", "serial_nhwc", "strided",
         "broadcast", "wide")
COLUMNS = ("kind", "stage", "calls", *SIZES)
STAGES = ("always", "eager", "autocast", "compiled", "train")
_FLOATS = ("float32", "float16", "bfloat16")
_LOWER = frozenset("convolution mm addmm bmm baddbmm _scaled_dot_product_efficient_attention "
                   "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention _cudnn_rnn".split())
_FP32 = frozenset("native_layer_norm native_group_norm _softmax _log_softmax exp pow rsqrt reciprocal sum prod cumsum log "
                  "linalg_vector_norm softplus _fused_rms_norm logsumexp upsample_bicubic2d upsample_bilinear2d "
                  "upsample_nearest2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa".split())
_WRITES = counts.FILLS | counts.RANDOM
_ONE_OUTPUT = ("layer_norm", "group_norm", "batch_norm", "attention")  # the others are statistics
_TAKES = ("index", "index_select", "gather", "embedding")  # they read a part of the first tensor
_UPDATED = 16  # bytes that a step of the optimizer reads for each parameter
Row = dict[str, Any]


class Storage(NamedTuple):
    """Whether a storage of floats is in 32 bits under autocast, and whether it grows with the batch.

    ``follows``: it is in channels_last if the network is, as outputs of convolutions are.
    """

    wide: bool
    grows: bool
    follows: bool


class Storages(dict[int, Storage]):
    """What is known of each storage of a network."""

    def of(self, spec: TensorSpec) -> Storage:
        """Return what is known of a tensor's storage."""
        return self.get(spec.storage, Storage(True, spec.kind == "input", spec.kind == "input"))

    def itemsize(self, spec: TensorSpec) -> int:
        """Return the bytes of an element."""
        return spec.itemsize if spec.dtype not in _FLOATS else 4 if self.of(spec).wide else 2

    def enter(self, op: Op, kind: str, wide: bool, grows: bool) -> None:
        """Record an operator's outputs. A tensor changed in place keeps its type."""
        follows = kind in CONVOLVING or bool(kind in LAYOUT_KEPT and op.tensors and self.of(op.tensors[0]).follows)
        for spec in op.outputs:
            before = self.get(spec.storage) if op.short.endswith("_") else None
            self[spec.storage] = Storage(before.wide, before.grows or grows, follows) if before else \
                Storage(wide, grows, follows)

    def view(self, op: Op) -> None:
        """Record a view's outputs that have a storage of their own."""
        for spec in op.outputs if op.tensors else ():
            grows = any(self.of(source).grows for source in op.tensors)
            self.setdefault(spec.storage, Storage(self.of(op.tensors[0]).wide, grows, spec.kind == "input"))


def elements_of(spec: TensorSpec) -> int:
    """Return the distinct elements of a tensor."""
    return spec.bytes // spec.itemsize


def _result_is_wide(op: Op, floats: list[TensorSpec], in_fp32: bool | None, storages: Storages) -> bool:
    if in_fp32 is not None or not floats:
        return in_fp32 is not False
    first = storages.of(floats[0]).wide
    if "batch_norm" in op.short or op.short.endswith("_"):
        return first
    if op.short == "_to_copy":
        return dict(op.kwargs).get("dtype") in (None, "dtype:float32") and first
    return any(storages.of(spec).wide for spec in [spec for spec in floats if spec.shape] or floats)


def _sources(op: Op) -> list[TensorSpec]:
    """Return what an operator reads, each tensor once."""
    distinct = list({(spec.storage, spec.shape, spec.stride): spec for spec in op.tensors}.values())
    return distinct[1:] if op.short in _WRITES | {"copy_"} else distinct


def _results(op: Op) -> list[TensorSpec]:
    results = [spec for spec in op.outputs if spec.elements]
    return results[:1] if any(part in op.short for part in _ONE_OUTPUT) else results


def _row(op: Op, storages: Storages, in_fp32: bool | None, wide: bool, scales: bool) -> Row:
    """Return an operator as a row; its inputs count in the type that it computes in."""
    kind, sources, results = kind_of(op), _sources(op), _results(op)
    most = max((spec.elements for spec in results), default=0)
    read = [(min(elements_of(spec), most) if op.short in _TAKES and not place else elements_of(spec), storages.of(spec).grows,
             storages.itemsize(spec) if in_fp32 is None or spec.dtype not in _FLOATS else 4 if in_fp32 else 2)
            for place, spec in enumerate(sources)]
    written = [(elements_of(spec), scales, spec.itemsize if spec.dtype not in _FLOATS else 4 if wide else 2)
               for spec in results]
    is_picture = results and len(results[0].shape) == 4  # batch, channels, height, width
    return {"kind": kind, "stage": "always" if kind in ALWAYS else "eager", "scales": scales, "launches": 1,
            "flops": float(counts.matrix_flops(op)), **fusion.traffic(read, written),
            "side": results[0].shape[-1] if is_picture else 0, "strided": not all(map(is_dense, sources[:2])), "wide": wide,
            "broadcast": any(spec.shape and spec.elements < most for spec in sources), **gemm(op), **reduction(op),
            **serial(op, bool(op.tensors) and storages.of(op.tensors[0]).follows)}


def _steps(row: Row, op: Op) -> list[Row]:
    """Return the kernels of a recurrent layer, one after the other: one for each layer, direction and step."""
    layer = recurrent.sizes(op)
    steps = layer.layers * layer.directions * layer.steps
    shares = {name: row[name] / steps for name in ("flops", *fusion.traffic((), ()))}
    return [{**row, **shares, "launches": layer.layers * layer.directions / steps}] * steps


def of_graph(graph: Graph) -> pd.DataFrame:
    """Return the rows (COLUMNS) of a network captured at BATCH in fp32; ``stage`` says in which of STAGES a row runs.

    Sizes are those of BATCH: ``read, written`` grow with the batch, ``_once`` not; ``scales`` says whether FLOPs and GEMMs do.
    """
    storages, rows, nodes, cast_once = Storages(), [], [], set()
    for op in graph.ops:
        if not counts.is_work(op):
            storages.view(op)
            continue
        in_fp32 = False if op.short in _LOWER else True if op.short.rstrip("_") in _FP32 else None  # None: as its inputs come
        floats = [spec for spec in op.tensors if spec.dtype in _FLOATS]
        wide = _result_is_wide(op, floats, in_fp32, storages)
        scales = any(storages.of(spec).grows for spec in op.tensors) and op.short not in _WRITES
        if in_fp32 is not None:
            cast = [spec for spec in floats if storages.of(spec).wide != in_fp32 and spec.storage not in cast_once]
            cast_once |= {spec.storage for spec in cast if spec.kind == "parameter"}  # a parameter once a pass
            for spec in cast:
                size = elements_of(spec), storages.of(spec).grows
                rows.append({"kind": "cast", "stage": "autocast", "launches": 1, "scales": size[1], **fusion.traffic(
                    [(*size, storages.itemsize(spec))], [(*size, 4 if in_fp32 else 2)])})
        row = _row(op, storages, in_fp32, wide, scales)
        rows += _steps(row, op) if op.short in recurrent.CUDNN else [row]
        if op.short == "convolution" and isinstance(op.args[2], TensorSpec) and row["kind"] != "conv_depthwise":
            # after cuDNN's convolution a kernel adds the bias
            sizes = [(elements_of(op.outputs[0]), scales, 4 if wide else 2)]
            rows.append({"kind": "elementwise", "stage": "eager", "scales": scales, "wide": wide, "broadcast": True,
                         **fusion.traffic(sizes, sizes)})
        read = {spec.storage: (elements_of(spec), storages.of(spec).grows, 2 if in_fp32 is False else storages.itemsize(spec))
                for spec in _sources(op)}
        written = {spec.storage: (elements_of(spec), scales, 4 if wide else 2) for spec in _results(op)}
        nodes.append(fusion.Node(row["kind"], read, written, bool(row.get("reductions"))))
        storages.enter(op, row["kind"], wide, scales)
    parameters = graph.parameters
    rows += [{**row, "stage": "compiled"} for row in fusion.rows(nodes)]
    rows.append({"kind": "update", "stage": "train", "launches": 1, "read_once": _UPDATED * parameters,
                 "written_once": 8 * parameters,
                 "read_elements_once": 4 * parameters, "written_elements_once": 2 * parameters})
    return _table(rows)


def _table(rows: list[Row]) -> pd.DataFrame:
    """Return distinct rows with how often they are called."""
    names = ["kind", "stage", *SIZES]
    table = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(SIZES, float)).fillna(0.0)
    table = table.groupby(names, sort=False, as_index=False).size().rename(columns={"size": "calls"})
    types = {"kind": pd.CategoricalDtype(KERNEL_KINDS), "stage": pd.CategoricalDtype(STAGES), "calls": float}
    return table.astype(types)[[*COLUMNS]]


def parameters(table: pd.DataFrame) -> float:
    """Return how many parameters the network of these rows has."""
    return float(table.loc[table["kind"] == "update", "read_once"].sum()) / _UPDATED


def of_passes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the passes of a network alone, without those of an optimizer's step."""
    return table[table["kind"] != "update"]


def batch_of(batch_size: int) -> int:
    """Return the batch size at which a network is captured for a question about a batch size."""
    return max(BATCH, batch_size)


def of_network(network: Network, ready: nn.Module | None = None) -> pd.DataFrame:
    """Capture a forward pass of a network as CUDA runs it, at ``batch_of`` its batch, and return its rows, see ``of_graph``.

    ``ready`` is the network where it was prepared in fp32 before.
    """
    if network.batch[0].shape[0] < BATCH:
        batch = tuple(replace(given, shape=(BATCH, *given.shape[1:])) for given in network.batch)
        network = replace(network, shape=batch[0].shape, inputs=batch)
    return of_graph(capture.of_network(network, "infer", device="cuda:0", ready=ready))
