"""A captured network as rows of work on a GPU, linear in the batch, as automatic mixed precision runs it.

Capture is in fp32: which tensors would be in 16 bits, and what is cast from one to the other, follows from torch's lists of
what autocast computes in which (torch/csrc/autocast_mode: ``AT_FORALL_LOWER_PRECISION_FP`` and ``AT_FORALL_FP32``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd
from torch import nn

from lib.errors import InputError
from lib.predict.cards import fusion
from lib.predict.cards.operator_kinds import CONVOLVING, KINDS, LAYOUT_KEPT, gemm, is_dense, kind_of, serial
from lib.progress import track
from lib.work.graph import capture, counts
from lib.work.graph.ops import Graph, Op, TensorSpec
from lib.work.networks import Network

BATCH = 2  # at which networks are captured: no size of the batch is 1
COLUMNS = ("kind", "stage", "calls", "scales", "flops", "read", "written", "read_once", "written_once", "read_elements",
           "written_elements", "read_elements_once", "written_elements_once", "gemms", "m", "n", "k", "width_in", "width_out",
           "groups", "window", "stride", "side", "serial", "serial_nhwc", "strided", "broadcast", "wide")
STAGES = ("always", "eager", "compiled", "train")
_FLOATS = ("float32", "float16", "bfloat16")
_LOWER = frozenset("convolution mm addmm bmm baddbmm _scaled_dot_product_efficient_attention "
                   "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention".split())
_FP32 = frozenset("native_layer_norm native_group_norm _softmax _log_softmax exp pow rsqrt reciprocal sum prod cumsum log "
                  "linalg_vector_norm softplus _fused_rms_norm logsumexp upsample_bicubic2d upsample_bilinear2d "
                  "upsample_nearest2d _upsample_bicubic2d_aa _upsample_bilinear2d_aa".split())
_ONE_OUTPUT = ("layer_norm", "group_norm", "batch_norm", "attention")  # the others are statistics
_TAKES = ("index", "index_select", "gather", "embedding")  # of the first tensor only what they take
_UPDATED = 16  # bytes that a step of the optimizer reads of a parameter
Row = dict[str, Any]
Key = TypeVar("Key", bound=tuple)


def elements_of(spec: TensorSpec) -> int:
    """Return the distinct elements of a tensor."""
    return spec.bytes // spec.itemsize


class Precision:
    """Which storages would be in 16 bits under autocast, and which depend on the input, so that they grow with the batch."""

    def __init__(self):
        self._wide: dict[int, bool] = {}
        self._scales: dict[int, bool] = {}
        self._cached: set[int] = set()

    def is_wide(self, spec: TensorSpec) -> bool:
        """Return whether a tensor of floats is in 32 bits."""
        return self._wide.get(spec.storage, True)

    def scales(self, spec: TensorSpec) -> bool:
        """Return whether a tensor grows with the batch."""
        return self._scales.get(spec.storage, spec.kind == "input")

    def itemsize(self, spec: TensorSpec) -> int:
        """Return the bytes of an element."""
        return spec.itemsize if spec.dtype not in _FLOATS else 4 if self.is_wide(spec) else 2

    def enter(self, op: Op, wide: bool, scales: bool) -> None:
        """Take down what an operator gives; what is changed in place stays in the type that it was."""
        for spec in op.outputs:
            if op.short.endswith("_") and spec.storage in self._wide:
                self._scales[spec.storage] = self._scales.get(spec.storage, False) or scales
                continue
            self._wide[spec.storage], self._scales[spec.storage] = wide, scales

    def view(self, op: Op) -> None:
        """Take down what a view gives, where it gives a storage of its own."""
        for spec in op.outputs:
            if spec.storage not in self._scales:
                self._scales[spec.storage] = any(map(self.scales, op.tensors))
                if op.tensors:
                    self._wide[spec.storage] = self.is_wide(op.tensors[0])

    def casts(self, tensors: Iterable[TensorSpec], wide: bool) -> list[TensorSpec]:
        """Return which tensors are cast before an operator that computes in one type; a parameter once a pass."""
        cast = [spec for spec in tensors if self.is_wide(spec) != wide and spec.storage not in self._cached]
        self._cached |= {spec.storage for spec in cast if spec.kind == "parameter"}
        return cast


class Layouts:
    """Which storages hold pictures in channels_last where the network is: what convolutions write, and what keeps their layout.

    Others, such as what products of matrices write, lie as they do in NCHW.
    """

    def __init__(self):
        self._follows: dict[int, bool] = {}

    def follows(self, spec: TensorSpec) -> bool:
        """Return whether a tensor is in channels_last where the network is."""
        return self._follows.get(spec.storage, spec.kind == "input")

    def enter(self, op: Op, kind: str) -> None:
        """Take down what an operator of a kind gives."""
        keeps = kind in LAYOUT_KEPT and op.tensors and self.follows(op.tensors[0])
        self._follows |= dict.fromkeys((spec.storage for spec in op.outputs), kind in CONVOLVING or bool(keeps))


def _wanted(op: Op) -> bool | None:
    """Return whether autocast computes an operator in 32 bits (True), in 16 (False), or as its inputs come (None)."""
    name = op.short
    return False if name in _LOWER else True if name.rstrip("_") in _FP32 else None


def _result_is_wide(op: Op, floats: list[TensorSpec], wanted: bool | None, precision: Precision) -> bool:
    if wanted is not None or not floats:
        return wanted is not False
    if "batch_norm" in op.short or op.short.endswith("_"):
        return precision.is_wide(floats[0])
    if op.short == "_to_copy":
        return dict(op.kwargs).get("dtype") in (None, "dtype:float32") and precision.is_wide(floats[0])
    return any(precision.is_wide(spec) for spec in [spec for spec in floats if spec.shape] or floats)


def _cast_row(spec: TensorSpec, wide: bool, precision: Precision) -> Row:
    elements, scales = elements_of(spec), precision.scales(spec)
    return {"kind": "cast", "scales": scales, **fusion.traffic([(elements, scales, precision.itemsize(spec))], "read"),
            **fusion.traffic([(elements, scales, 4 if wide else 2)], "written")}


def _sources(op: Op) -> list[TensorSpec]:
    """Return what an operator reads, each tensor once."""
    distinct = list({(spec.storage, spec.shape, spec.stride): spec for spec in op.tensors}.values())
    overwrites = op.short == "copy_" or op.short in counts.FILLS or op.short in counts.RANDOM
    return distinct[1:] if overwrites else distinct


def _results(op: Op) -> list[TensorSpec]:
    results = [spec for spec in op.outputs if spec.elements]
    return results[:1] if any(part in op.short for part in _ONE_OUTPUT) else results


def _row(op: Op, precision: Precision, layouts: Layouts, wanted: bool | None, wide: bool, scales: bool) -> Row:
    """Return an operator as a row; its inputs count in the type that it computes in."""
    def itemsize(spec: TensorSpec) -> int:
        return precision.itemsize(spec) if wanted is None or spec.dtype not in _FLOATS else 4 if wanted else 2

    kind, sources, results = kind_of(op), _sources(op), _results(op)
    most = max((spec.elements for spec in results), default=0)
    read = [(min(elements_of(spec), most) if op.short in _TAKES and not place else elements_of(spec),
             precision.scales(spec), itemsize(spec)) for place, spec in enumerate(sources)]
    written = [(elements_of(spec), scales, spec.itemsize if spec.dtype not in _FLOATS else 4 if wide else 2)
               for spec in results]
    image = results[0] if results and len(results[0].shape) == 4 else None  # noqa: PLR2004 - batch, channels, height, width
    return {"kind": kind, "scales": scales, "flops": float(counts.matrix_flops(op)), **fusion.traffic(read, "read"),
            **fusion.traffic(written, "written"), "side": image.shape[-1] if image else 0,
            "strided": not all(map(is_dense, sources[:2])), "wide": wide,
            "broadcast": any(spec.shape and spec.elements < most for spec in sources), **gemm(op),
            **serial(op, bool(op.tensors) and layouts.follows(op.tensors[0]))}


def of_graph(graph: Graph) -> pd.DataFrame:
    """Return the rows (COLUMNS) of a network captured at BATCH in fp32; ``stage`` says in which of STAGES a row runs.

    Sizes are those of BATCH: ``read, written`` grow with the batch, ``_once`` not; ``scales`` says whether FLOPs and GEMMs do.
    """
    precision, layouts, rows, nodes = Precision(), Layouts(), [], []
    for op in graph.ops:
        if not counts.is_work(op):
            precision.view(op)
            continue
        wanted, floats = _wanted(op), [spec for spec in op.tensors if spec.dtype in _FLOATS]
        wide = _result_is_wide(op, floats, wanted, precision)
        scales = any(map(precision.scales, op.tensors)) and op.short not in counts.FILLS | counts.RANDOM
        if wanted is not None:
            rows += [_cast_row(spec, wanted, precision) for spec in precision.casts(floats, wanted)]
        row = _row(op, precision, layouts, wanted, wide, scales)
        rows.append(row)
        read = {spec.storage: (elements_of(spec), precision.scales(spec), 2 if wanted is False else precision.itemsize(spec))
                for spec in _sources(op)}
        written = {spec.storage: (elements_of(spec), scales, 4 if wide else 2) for spec in _results(op)}
        nodes.append(fusion.Node(row["kind"], read, written))
        precision.enter(op, wide, scales)
        layouts.enter(op, row["kind"])
    parameters = graph.parameters
    update = {"kind": "update", "scales": False, "read_once": _UPDATED * parameters, "written_once": 8 * parameters,
              "read_elements_once": 4 * parameters, "written_elements_once": 2 * parameters}
    stages = (*((row, "always" if row["kind"] in fusion.ALWAYS else "eager") for row in rows),
              *((row, "compiled") for row in fusion.rows(nodes)), (update, "train"))
    return _table(stages)


def parameters(table: pd.DataFrame) -> float:
    """Return how many parameters the network of these rows has."""
    return float(table.loc[table["kind"] == "update", "read_once"].sum()) / _UPDATED


def of_passes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the passes of a network alone, without those of an optimizer's step."""
    return table[table["kind"] != "update"]


def _table(rows: Iterable[tuple[Mapping[str, Any], str]]) -> pd.DataFrame:
    """Return distinct rows with how often they are called."""
    counted = Counter(tuple(sorted({**row, "stage": stage}.items())) for row, stage in rows)
    table = pd.DataFrame([{**dict(row), "calls": calls} for row, calls in counted.items()], columns=list(COLUMNS))
    numbers = [name for name in COLUMNS if name not in ("kind", "stage")]
    table[numbers] = table[numbers].fillna(0).astype(float)
    return table.assign(kind=pd.Categorical(table["kind"], KINDS), stage=pd.Categorical(table["stage"], STAGES))


def of_network(network: Network, ready: nn.Module | None = None) -> pd.DataFrame:
    """Capture a forward pass of a network at BATCH as CUDA runs it, and return its rows, see ``of_graph``.

    ``ready`` is the network where it was prepared in fp32 before.
    """
    batch = tuple(replace(given, shape=(BATCH, *given.shape[1:])) for given in network.batch)
    small = replace(network, shape=batch[0].shape, inputs=batch)
    return of_graph(capture.of_network(small, "infer", device="cuda:0", ready=ready))


def of_networks(keys: Iterable[Key], build: Callable[..., Network]) -> tuple[dict[Key, pd.DataFrame], dict[str, str]]:
    """Return the rows of networks, each once, as ``build`` gives them of their keys (tuples), and why others have none."""
    captures, reasons = {}, {}
    for key in track(list(dict.fromkeys(keys)), "capture"):
        try:
            captures[key] = of_network(build(*key))
        except InputError as error:
            reasons[" ".join(map(str, key)).strip()] = str(error)
    return captures, reasons
