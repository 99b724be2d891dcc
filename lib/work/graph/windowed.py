"""The families that slide windows over images and volumes: convolutions and pooling."""

from itertools import chain

from torch.nn import functional as F

from lib.errors import choices
from lib.work.graph import shapes
from lib.work.graph.family import LAYOUTS, Family, Params
from lib.work.graph.ops import Op
from lib.work.graph.shapes import AXES, dense


def _windows(axes: tuple[str, ...], *facts: str) -> list[str]:
    return [f"{fact}_{axis[0]}" for fact in facts for axis in axes]


def _data(p: Params, axes: tuple[str, ...], dtype: str):
    return dense((p["batch"], p["in_channels"], *[p[axis] for axis in axes]), dtype, p["layout"])


def convolution(dims: int) -> Family:
    """Return the family of convolutions with ``dims`` spatial dimensions."""
    axes = AXES[3 - dims:]
    windows = _windows(axes, "kernel", "stride", "padding", "dilation")

    def build(p: Params, dtype: str):
        kernel, *steps = ([p[name] for name in windows[place:place + dims]] for place in range(0, len(windows), dims))

        def call(x, w, b=None):
            return getattr(F, f"conv{dims}d")(x, w, b, *steps, p["groups"])
        weight = dense((p["out_channels"], p["in_channels"] // p["groups"], *kernel), dtype, p["layout"])
        bias = [(dense((p["out_channels"],), dtype), True)] if p["bias"] else []
        return call, [(_data(p, axes, dtype), bool(p["input_grad"])), (weight, True), *bias]

    def read(op: Op) -> tuple | None:
        data, weight, _, steps, transposed, groups, wanted = shapes.convolution(op)
        if len(weight.shape) != dims + 2 or transposed:
            return None
        return (*data.shape[:2], weight.shape[0], *data.shape[2:], *weight.shape[2:], *chain(*steps), groups,
                int(wanted[2]), shapes.layout(data), int(wanted[0]))

    def check(p: Params) -> str:
        if p["in_channels"] % p["groups"] or p["out_channels"] % p["groups"]:
            return f"groups {p['groups']} do not divide the channels {p['in_channels']} and {p['out_channels']}"
        return shapes.window_problem(p, axes)

    names = ("batch", "in_channels", "out_channels", *axes, *windows, "groups", "bias", "layout", "input_grad")
    usual = dict.fromkeys(_windows(axes, "dilation"), 1) | dict.fromkeys(_windows(axes, "padding"), 0)
    return Family(f"conv{dims}d", names, ("convolution", "convolution_backward"), read, build, check,
                  {"bias": 0, "layout": "contiguous", "input_grad": 1, "groups": 1, **usual}, LAYOUTS)


def pool(dims: int) -> Family:
    """Return the family of pooling with ``dims`` spatial dimensions."""
    axes = AXES[3 - dims:]
    windows, outs = _windows(axes, "kernel", "stride", "padding"), [f"out_{axis}" for axis in axes]

    def build(p: Params, dtype: str):
        sizes = [[p[name] for name in outs]] if p["kind"] == "adaptive_avg" else \
            [[p[name] for name in windows[place:place + dims]] for place in range(0, len(windows), dims)]
        return lambda x: getattr(F, f"{p['kind']}_pool{dims}d")(x, *sizes), [(_data(p, axes, dtype), True)]

    def read(op: Op) -> tuple | None:
        if f"{dims}d" not in op.short:
            return None
        backward = op.is_backward
        data, output = (op.args[1], op.args[0]) if backward else (op.args[0], op.outputs[0])
        if "adaptive" in op.short:
            return "adaptive_avg", *data.shape, *[None] * len(windows), *output.shape[2:], shapes.layout(data)
        kernel, stride, padding = (shapes.wide(value, dims) for value in op.args[2 if backward else 1:][:3])
        return ("max" if "max" in op.short else "avg", *data.shape, *kernel, *(stride or kernel), *padding, *[None] * dims,
                shapes.layout(data))

    def check(p: Params) -> str:
        adaptive = p["kind"] == "adaptive_avg"
        if missing := [name for name in (outs if adaptive else windows) if name not in p]:
            return f"kind {p['kind']} needs {choices(missing)}"
        if adaptive:
            return ""
        if any(2 * p[f"padding_{axis[0]}"] > p[f"kernel_{axis[0]}"] for axis in axes):
            return "padding is more than half of the kernel"
        return shapes.window_problem(p | dict.fromkeys(_windows(axes, "dilation"), 1), axes)

    covered = [f"{name}{suffix}" for suffix in ("", "_backward")
               for name in (f"max_pool{dims}d_with_indices", f"avg_pool{dims}d", f"_adaptive_avg_pool{dims}d")]
    return Family(f"pool{dims}d", ("kind", "batch", "in_channels", *axes, *windows, *outs, "layout"), covered, read,
                  build, check, {"layout": "contiguous"}, {"kind": ("max", "avg", "adaptive_avg"), **LAYOUTS},
                  (*windows, *outs))
