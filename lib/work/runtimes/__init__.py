"""What runs networks: one file per runtime, and their registry.

Each module has

- ``NAME`` and ``DTYPES``, the element types of networks that it runs;
- ``IS_TORCH``: whether it trains, and has layouts and devices;
- ``INPUTS``, if it is not torch's: how passes get their inputs, which goes into
  ``networks.meta.json``;
- ``prepare(model, inputs, config, folder)``: one pass, ready to call, of a model with ``inputs`` (a
  list, and a dictionary by name), by the ``RunConfig``; ``folder`` keeps files between calls;
- ``example_program(config)``: imports and lines of a program to paste, which has ``model``,
  ``batch`` and torch's threads, and needs ``run``.

A new runtime is a file here and its name in ``RUNTIMES``, beside a line of requirements.txt. Modules
import torch and their package when they prepare, so that the command line lists them quickly.
"""

from types import ModuleType
from typing import Any

from lib.errors import InputError, choices, entry
from lib.work.runtimes import compiled, eager, onnxruntime, openvino

RUNTIMES = {module.NAME: module for module in (eager, onnxruntime, openvino)}
TORCH = eager.NAME


def runtime_of(config: Any) -> ModuleType:
    """Return the runtime of a ``RunConfig``; InputError for an unknown one, and for what it lacks."""
    runtime = entry(RUNTIMES, config.runtime, "runtime")
    if config.compiled and runtime.IS_TORCH:
        runtime = compiled
    if config.dtype not in runtime.DTYPES:
        others = [name for name, other in RUNTIMES.items() if config.dtype in other.DTYPES]
        raise InputError(f"{runtime.NAME} runs no networks in {config.dtype}, but in "
                         f"{choices(runtime.DTYPES)}; runtimes with it: {choices(others)}")
    if not runtime.IS_TORCH and (config.mode != "infer" or config.compiled
                                 or config.layout != "contiguous"):
        raise InputError(f"{runtime.NAME} only infers, in a layout of its own, and compiles by "
                         "itself; training, channels_last and torch.compile are torch's")
    return runtime
