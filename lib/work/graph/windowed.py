"""The families that slide windows over images and volumes: convolutions and pooling."""


from torch.nn import functional as F

from lib.errors import choices
from lib.work.graph import shapes
from lib.work.graph.family import LAYOUTS, Family, Params, names_in
from lib.work.graph.ops import Op
from lib.work.graph.shapes import AXES, dense


def convolution(dims: int) -> Family:
    """Return the family of convolutions with ``dims`` spatial dimensions."""
    axes = AXES[3 - dims:]
    windows = [f"{what}_{axis[0]}" for what in ("kernel", "stride", "padding", "dilation") for axis in axes]
    sizes = ("batch", "in_channels", "out_channels", *axes)

    def values(p: Params, what: str) -> list[int]:
        return [p[f"{what}_{axis[0]}"] for axis in axes]

    def build(p: Params, dtype: str):
        def call(x, w, b=None):
            function = F.conv2d if dims == 2 else F.conv3d
            return function(x, w, b, values(p, "stride"), values(p, "padding"), values(p, "dilation"), p["groups"])
        data = dense((p["batch"], p["in_channels"], *[p[axis] for axis in axes]), dtype, p["layout"])
        weight = dense((p["out_channels"], p["in_channels"] // p["groups"], *values(p, "kernel")), dtype, p["layout"])
        bias = [(dense((p["out_channels"],), dtype), True)] if p["bias"] else []
        return call, [(data, bool(p["input_grad"])), (weight, True), *bias]

    def read(op: Op) -> Params | None:
        backward = op.short == "convolution_backward"
        data, weight = (op.args[1], op.args[2]) if backward else op.args[:2]
        stride, padding, dilation, transposed, _, groups = op.args[4:10] if backward else op.args[3:9]
        if len(weight.shape) != dims + 2 or transposed:
            return None
        window = [weight.shape[2:], *(shapes.wide(v, dims) for v in (stride, padding, dilation))]
        mask = op.args[10] if backward else (True, True, op.args[2] is not None)
        return {"batch": data.shape[0], "in_channels": data.shape[1], "out_channels": weight.shape[0],
                **dict(zip(axes, data.shape[2:], strict=True)),
                **dict(zip(windows, [value for values in window for value in values], strict=True)), "groups": groups,
                "bias": int(mask[2]), "layout": shapes.layout(data), "input_grad": int(mask[0])}

    def check(p: Params) -> str:
        if p["in_channels"] % p["groups"] or p["out_channels"] % p["groups"]:
            return f"groups {p['groups']} do not divide the channels {p['in_channels']} and {p['out_channels']}"
        return shapes.window_problem(p, axes)

    return Family(f"conv{dims}d", (*sizes, *windows, "groups", "bias", "layout", "input_grad"),
                  names_in("convolution convolution_backward"), read, build, check,
                  (("bias", 0), ("layout", "contiguous"), ("input_grad", 1), ("groups", 1),
                   *((f"dilation_{axis[0]}", 1) for axis in axes), *((f"padding_{axis[0]}", 0) for axis in axes)),
                  (LAYOUTS,))


def pool(dims: int) -> Family:
    """Return the family of pooling with ``dims`` spatial dimensions."""
    axes = AXES[3 - dims:]
    windows = [f"{what}_{axis[0]}" for what in ("kernel", "stride", "padding") for axis in axes]
    outs = [f"out_{axis}" for axis in axes]
    max_name = f"max_pool{dims}d_with_indices"

    def build(p: Params, dtype: str):
        data = dense((p["batch"], p["in_channels"], *[p[axis] for axis in axes]), dtype, p["layout"])
        if p["kind"] == "adaptive_avg":
            function = F.adaptive_avg_pool2d if dims == 2 else F.adaptive_avg_pool3d
            return lambda x: function(x, [p[name] for name in outs]), [(data, True)]
        functions = {"max": (F.max_pool2d, F.max_pool3d), "avg": (F.avg_pool2d, F.avg_pool3d)}
        function, window = functions[p["kind"]][dims - 2], [p[name] for name in windows]
        return lambda x: function(x, window[:dims], window[dims:2 * dims], window[2 * dims:]), [(data, True)]

    def read(op: Op) -> Params | None:
        if f"{dims}d" not in op.short:
            return None
        backward = op.short.endswith("backward")
        data = op.args[1] if backward else op.args[0]
        facts = {"batch": data.shape[0], "in_channels": data.shape[1], **dict(zip(axes, data.shape[2:], strict=True)),
                 "layout": shapes.layout(data)}
        if "adaptive" in op.short:
            out = op.args[0].shape[2:] if backward else op.outputs[0].shape[2:]
            return {"kind": "adaptive_avg", **facts, **dict(zip(outs, out, strict=True))}
        kernel, stride, padding = (shapes.wide(value, dims) for value in op.args[2 if backward else 1:][:3])
        return {"kind": "max" if "max" in op.short else "avg", **facts,
                **dict(zip(windows, [*kernel, *(stride or kernel), *padding], strict=True))}

    def check(p: Params) -> str:
        if p["kind"] == "adaptive_avg":
            return "" if all(p.get(name) for name in outs) else f"kind adaptive_avg needs {choices(outs)}"
        missing = [name for name in windows if name not in p]
        if missing:
            return f"kind {p['kind']} needs {choices(missing)}"
        if any(2 * p[f"padding_{axis[0]}"] > p[f"kernel_{axis[0]}"] for axis in axes):
            return "padding is more than half of the kernel"
        return shapes.window_problem({**p, **{f"dilation_{axis[0]}": 1 for axis in axes}}, axes)

    covers = f"{max_name} {max_name}_backward avg_pool{dims}d avg_pool{dims}d_backward _adaptive_avg_pool{dims}d " \
             f"_adaptive_avg_pool{dims}d_backward"
    return Family(f"pool{dims}d", ("kind", "batch", "in_channels", *axes, *windows, *outs, "layout"), names_in(covers), read,
                  build, check, (("layout", "contiguous"),), (("kind", ("max", "avg", "adaptive_avg")), LAYOUTS))
