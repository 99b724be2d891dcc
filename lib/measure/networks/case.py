"""One network to run: its name, mode and batch, and the program that runs it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map

from lib.work import dtypes, networks
from lib.work.graph import capture


@dataclass(frozen=True)
class Case:
    """One network in one mode at one batch size; ``input_shape`` empty is its usual one."""

    network: str
    mode: str
    batch_size: int
    input_shape: str = ""
    dtype: str = "fp32"
    channels_last: bool = False
    compiled: bool = False


def program(case: Case, device: torch.device) -> Callable[[], object]:
    """Return one pass (infer), or one forward, loss and backward (train), of a network with random weights."""
    net = networks.network(case.network, case.batch_size, case.input_shape)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    model, (placed, named) = net.build().to(device), net.made(device)
    if any(input_.is_picture for input_ in net.batch):
        model = model.to(memory_format=layout)
        placed, named = tree_map(lambda value: value.to(memory_format=layout) if value.dim() == 4 else value, (placed, named))
    model = torch.compile(model) if case.compiled else model
    amp = torch.autocast(device.type, dtypes.torch_dtype(case.dtype)) if case.dtype != "fp32" else nullcontext()
    if case.mode == "infer":
        model.eval()

        def forward() -> object:
            with torch.no_grad(), amp:
                return model(*placed, **named)
        return forward
    model.train()

    def step() -> None:
        with amp:
            loss = capture.default_loss(capture.first_tensor(model(*placed, **named)))
        loss.backward()
        model.zero_grad(set_to_none=True)
    return step
