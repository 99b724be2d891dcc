"""The program that runs one network as a ``RunConfig`` says."""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch.utils._pytree import tree_map

from lib.errors import InputError
from lib.work import user_code
from lib.work.graph import capture
from lib.work.run_config import RunConfig
from lib.work.runtimes import TORCH, runtime_of

_SEED = 0  # of weights and inputs, which an exported file holds
# relative Euclidean distance of outputs from those of fp32
_TOLERANCE = {"fp32": 0.01, "bf16": 0.2, "fp16": 0.1, "int8": 0.7}
Program = tuple[Callable[[], object], float]


def program(config: RunConfig, device: torch.device, folder: Path | None = None) -> Program:
    """Return one pass of a network with random weights, and the seconds that preparing it took.

    A pass is a forward pass (infer), or forward, loss and backward (train), on torch's threads. Of
    inference on the CPU that is not eager fp32, the seconds are those of exporting, compiling or
    loading and the first pass, whose output is compared with that of eager fp32; else they are 0.
    Exported files are kept in ``folder``. Raises InputError where outputs differ, and for what the
    runtime lacks.
    """
    torch.manual_seed(_SEED)
    config.check()
    runtime, network = runtime_of(config), config.loaded()
    if device.type != "cpu" and not runtime.IS_TORCH:
        raise InputError(f"{runtime.NAME} runs networks on the CPU, not on {device}")
    model, inputs = network.build().to(device), network.made(device)
    is_compared = device.type == "cpu" and config.mode == "infer" and \
        (config.runtime, config.compiled, config.dtype) != (TORCH, False, "fp32")
    if is_compared:
        with torch.no_grad():
            output = user_code.in_mode(model, False)(*inputs[0], **inputs[1])
        expected = _first_array(output)
    if config.layout == "channels_last" and any(one.is_picture for one in network.batch):
        model, inputs = _channels_last(model, inputs)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        run = runtime.prepare(model, inputs, config, Path(place))
    if not is_compared:
        return run, 0.0
    output = run()
    prepare_s = time.perf_counter() - begin
    _compare(config, _first_array(output), expected)
    return run, prepare_s


def _channels_last(model, inputs: tuple[list, dict]) -> tuple:
    def placed(value: torch.Tensor) -> torch.Tensor:
        return value.to(memory_format=torch.channels_last) if value.dim() == 4 else value

    return model.to(memory_format=torch.channels_last), tree_map(placed, inputs)


def _first_array(output: object) -> np.ndarray:
    """Return the first output of a network of torch, or of one whose runtime gives arrays."""
    if isinstance(output, list) and isinstance(output[0], np.ndarray):
        return output[0]
    return capture.first_tensor(output).float().numpy()


def _compare(config: RunConfig, output: np.ndarray, expected: np.ndarray) -> None:
    """Raise InputError where an output is not that of eager fp32."""
    if output.shape != expected.shape:
        raise InputError(f"{config.label}: outputs have the shape {output.shape}, those of torch "
                         f"{expected.shape}")
    distance = np.linalg.norm(output - expected) / max(np.linalg.norm(expected), 1e-9)
    if not distance <= _TOLERANCE[config.dtype]:
        raise InputError(f"{config.label}: outputs differ from those of torch in fp32 by "
                         f"{distance:.2g} of their size, more than {_TOLERANCE[config.dtype]:g}")
