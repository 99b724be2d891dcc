"""One network to run: its name, mode, batch and conditions, and the program that runs it."""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from lib import files
from lib.config.definitions import TORCH
from lib.errors import InputError
from lib.measure.networks import runtimes
from lib.work import dtypes, networks, user_code
from lib.work.graph import capture

_SEED = 0  # of weights and inputs, which an exported file holds
_TOLERANCE = {"fp32": 0.01, "bf16": 0.2, "fp16": 0.1, "int8": 0.7}  # relative Euclidean distance of outputs from those of fp32


@dataclass(frozen=True)
class Case:
    """One network in one mode at one batch size; ``input_shape`` empty is its usual one.

    ``threads`` 0: as many as torch takes. ``instances``: processes side by side, on cores of their own.
    """

    network: str
    mode: str
    batch_size: int
    input_shape: str = ""
    dtype: str = "fp32"
    channels_last: bool = False
    compiled: bool = False
    runtime: str = TORCH
    threads: int = 0
    instances: int = 1

    @property
    def words(self) -> str:
        """Return it in a line."""
        return " ".join([self.network, self.mode, f"b{self.batch_size}", self.dtype, *["channels_last"] * self.channels_last,
                         *["compiled"] * self.compiled, *[self.runtime] * (self.runtime != TORCH),
                         *[f"{self.threads} threads"] * bool(self.threads),
                         *[f"{self.instances} instances"] * (self.instances > 1)])


Program = tuple[Callable[[], object], float]


def program(case: Case, device: torch.device, folder: Path | None = None) -> Program:
    """Return one pass (infer), or one forward, loss and backward (train), of a network with random weights.

    Behind it stand the seconds that exporting, compiling or loading the network took, its first pass included. Exported files
    are kept in ``folder``. Inference on the CPU that is not eager fp32 is compared with it: raises InputError where the output
    differs, and where a runtime lacks what is asked. The number of threads is torch's.
    """
    torch.manual_seed(_SEED)
    net = networks.network(case.network, case.batch_size, case.input_shape)
    if case.runtime != TORCH:
        return _exported(case, net, folder)
    if case.dtype == "int8":
        raise InputError(f"torch has no int8 networks; use the runtime {' or '.join(runtimes.TYPES)}")
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    model, (placed, named) = net.build().to(device), net.made(device)
    is_compared = device.type == "cpu" and case.mode == "infer" and (case.compiled or case.dtype != "fp32")
    usual = _output(model, placed, named) if is_compared else None
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
        return (forward, 0.0) if usual is None else _compared(case, forward, usual)
    model.train()

    def step() -> None:
        with amp:
            loss = capture.default_loss(capture.first_tensor(model(*placed, **named)))
        loss.backward()
        model.zero_grad(set_to_none=True)
    return step, 0.0


def _output(model: nn.Module, placed: list, named: dict) -> np.ndarray:
    with torch.no_grad():
        return capture.first_tensor(user_code.in_mode(model, False)(*placed, **named)).float().numpy()


def _exported(case: Case, net: networks.Network, folder: Path | None) -> Program:
    """Return one pass in a runtime of its own."""
    if case.mode != "infer" or case.compiled or case.channels_last:
        raise InputError(f"{case.runtime} only infers, in its own layout, and compiles in its own way")
    model, (placed, named) = user_code.in_mode(net.build(), False), net.made("cpu")
    usual, begin = _output(model, placed, named), time.perf_counter()
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        name = files.safe_name(f"{case.network} {case.batch_size} {case.input_shape} {torch.__version__}")
        run = runtimes.load(case.runtime, case.dtype, model, placed, named, Path(place) / name)
    return _compared(case, run, usual, begin)


def _compared(case: Case, run: Callable[[], object], usual: np.ndarray, begin: float | None = None) -> Program:
    """Run a pass and compare its output with that of torch in fp32; InputError where it is another one."""
    begin = time.perf_counter() if begin is None else begin
    output, prepare_s = run(), time.perf_counter() - begin
    output = capture.first_tensor(output).float().numpy() if case.runtime == TORCH else output[0]
    if output.shape != usual.shape:
        raise InputError(f"{case.words}: outputs have the shape {output.shape}, those of torch {usual.shape}")
    distance = np.linalg.norm(output - usual) / max(np.linalg.norm(usual), 1e-9)
    if not distance <= _TOLERANCE[case.dtype]:
        raise InputError(f"{case.words}: outputs differ from those of torch in fp32 by {distance:.2g} of their size, more than "
                         f"{_TOLERANCE[case.dtype]:g}")
    return run, prepare_s
