"""Element types: the short names of tables and parameters, and torch's."""

import torch

from lib.errors import entry

NAMES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16",
         "complex64": "complex64"}
AUTOCAST = ("bf16", "fp16")  # what automatic mixed precision may compute in


def torch_name(name: str) -> str:
    """Return torch's name of an element type: float32 for fp32, and for tf32."""
    return entry({**NAMES, "tf32": "float32"}, name, "element type")


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's element type of a short name; InputError lists them."""
    return getattr(torch, torch_name(name))
