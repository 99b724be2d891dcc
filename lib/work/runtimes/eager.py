"""Eager torch, on any of its devices; other element types than fp32 by autocast."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

NAME = "torch"
DTYPES = ("fp32", "bf16", "fp16")
IS_TORCH = True


def prepare(model, inputs: tuple[list, dict], config, folder: Path) -> Callable[[], object]:
    """Return a pass without gradients (infer), or forward, loss and backward (train)."""
    import torch

    from lib.work import dtypes
    from lib.work.graph import capture

    placed, named = inputs
    autocast = nullcontext()
    if config.dtype != "fp32":
        device_type = next(iter((*placed, *named.values()))).device.type
        autocast = torch.autocast(device_type, dtypes.torch_dtype(config.dtype))

    def forward() -> object:
        with torch.no_grad(), autocast:
            return model(*placed, **named)

    def step() -> None:
        with autocast:
            loss = capture.default_loss(capture.first_tensor(model(*placed, **named)))
        loss.backward()
        model.zero_grad(set_to_none=True)

    if config.mode == "train":
        model.train()
        return step
    model.eval()
    return forward


def example_program(config) -> tuple[list[str], str]:
    """Return what a program imports, and its lines from the model to a pass."""
    from lib.work import dtypes

    lines = []
    if config.layout == "channels_last":
        lines += ["model = model.to(memory_format=torch.channels_last)",
                  "batch = batch.to(memory_format=torch.channels_last)"]
    if config.compiled:
        lines.append("model = torch.compile(model)")
    if config.dtype == "fp32":
        lines.append("run = lambda: model(batch)")
    else:
        dtype = f"torch.{dtypes.torch_name(config.dtype)}"
        lines.append(f'run = torch.autocast("cpu", {dtype})(lambda: model(batch))')
    return [], "\n".join(lines)
