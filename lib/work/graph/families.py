"""All operator families: which parameters they take, which captured operator belongs to which, and how to make one.

A family turns parameters into the operators that torch runs for them (``make``) and a captured operator back into
parameters (``describe``). Those without a function to build cover what networks use beside the families worth sweeping.
"""

from functools import cache

from torch.nn import functional as F

from lib.errors import InputError, choices, entry
from lib.tables import PARAMETERS
from lib.work.graph import counts, gemm, memory_bound, windowed
from lib.work.graph.capture import capture_function
from lib.work.graph.family import Family, Params
from lib.work.graph.ops import Op, Ops

PASSES = ("forward", "backward")
_LEAST = {name: column.least for name, column in PARAMETERS.items()}  # None: a text
_MOST = {**dict.fromkeys(_LEAST, 10**9), **dict.fromkeys(("depth", "height", "width"), 65_536), "pieces": 1024,
         **{name: 1024 for name in _LEAST if name.startswith(("kernel_", "stride_", "padding_", "dilation_"))}}
_LOSSES = """nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
    binary_cross_entropy_with_logits"""


@cache
def families() -> dict[str, Family]:
    """Return every family by name, those that can be swept first."""
    rows, only = memory_bound.by_rows, memory_bound.elements_only
    listed = (
        windowed.convolution(2), windowed.convolution(3), gemm.matmul("linear", "addmm", bias=True),
        gemm.matmul("matmul", "mm"), gemm.matmul("bmm", "bmm baddbmm", batched=True), gemm.attention(),
        windowed.pool(2), windowed.pool(3),
        memory_bound.batch_norm(), rows("layer_norm", "native_layer_norm native_layer_norm_backward",
                                        {"layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b)}),
        rows("softmax", "_softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
             {"softmax": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, 1)}),
        memory_bound.activation(), memory_bound.elementwise(), memory_bound.reduction(), memory_bound.cat(),
        memory_bound.copy(), only("fill", counts.FILLS), only("random", counts.RANDOM | {"native_dropout_backward"}),
        only("loss", _LOSSES.split()), only("view", counts.VIEWS))
    return {family.name: family for family in listed}


def family(name: str) -> Family:
    """Return one family that can be built; InputError lists them."""
    return entry({item.name: item for item in families().values() if item.build}, name, "operator family")


@cache
def _covering() -> dict[str, list[Family]]:
    covering = {}
    for item in families().values():
        for name in item.covers:
            covering.setdefault(name, []).append(item)
    return covering


def describe(op: Op) -> tuple[str, Params] | None:
    """Return the family and the parameters of a captured operator; None when no family covers it."""
    for item in _covering().get(op.short, ()):
        if (values := item.read(op)) is not None:
            pairs = zip(item.parameters, values, strict=True)
            return item.name, {name: value for name, value in pairs if value is not None}
    return None


def make(name: str, params: Params, dtype: str = "float32", passes: str = "forward",
         device: str = "cpu") -> Ops:
    """Return the operators that torch runs on ``device`` for one pass of family ``name``; those that make views are left out.

    Raises InputError saying which parameter is missing, unknown or impossible.
    """
    item, full = family(name), settled(name, params)
    entry(PASSES, passes, "pass")
    if reason := _unlikely(item, full) or item.check(full):
        raise InputError(f"{name}: {reason}")
    function, inputs = item.build(full, dtype)
    ops = tuple(op for op in capture_function(function, inputs, passes, device) if op.short not in counts.VIEWS)
    if not ops:
        raise InputError(f"{name}: its {passes} pass runs no operator")
    return ops


def _unlikely(item: Family, full: Params) -> str:
    """Return which parameter is none at all: a text that the family does not have, or a number that no operator takes."""
    for name, value in full.items():
        least, most = _LEAST[name], _MOST[name]
        if value not in item.texts.get(name, (value,)):
            return f"{name} {value!r} is none; there are: {choices(item.texts[name])}"
        if least is not None and (isinstance(value, str) or not least <= value <= most):
            return f"{name} {value!r} is no number from {least} to {most}"
    return ""


def settled(name: str, params: Params) -> Params:
    """Return ``params`` completed by the family's defaults; InputError names what is unknown or missing."""
    item = family(name)
    full = item.defaults | params
    unknown = sorted(set(full) - set(item.parameters))
    missing = [parameter for parameter in item.parameters if parameter not in full and parameter not in item.optional]
    if unknown or missing:
        raise InputError(f"{name}: unknown parameters [{choices(unknown)}], missing [{choices(missing)}]; "
                         f"it takes: {choices(item.parameters)}")
    return {parameter: full[parameter] for parameter in item.parameters if parameter in full}
