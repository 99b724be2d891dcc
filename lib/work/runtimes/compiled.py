"""torch.compile: what ``--compile`` asks for, a form of the runtime torch."""

from collections.abc import Callable
from pathlib import Path

from lib.work.runtimes import eager

NAME = "torch.compile"
DTYPES = eager.DTYPES
IS_TORCH = True
example_program = eager.example_program


def prepare(model, inputs: tuple[list, dict], config, folder: Path) -> Callable[[], object]:
    """Return a pass of the compiled model, which is compiled in the first call."""
    import torch

    return eager.prepare(torch.compile(model), inputs, config, folder)
