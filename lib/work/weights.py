"""Tensors on disk: written in one step, read as data without running code."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lib import files
from lib.errors import InputError, refused


def save(content: Any, path: Path) -> Path:
    """Write tensors and plain values in one step; InputError on a full disk, the old file stays."""
    files.folder(path.parent)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            with open(temporary, "wb") as file:
                torch.save(content, file)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn torch's errors of a file that cannot be written into an InputError."""
    with files.writing(path):
        try:
            yield
        except RuntimeError as error:  # of torch's own writer, of an OSError or without one
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            if "iostream error" not in str(error) and "inline_container" not in str(error):
                raise
            raise OSError(errno.ENOSPC, "torch cannot write it: the disk may be full") from None


def load(path: Path) -> Any:
    """Read what ``save`` wrote, onto the CPU; InputError for a missing, damaged or other file."""
    if not path.exists():
        raise InputError(f"{path} is missing")
    with refused(f"{path} holds no tensors, or is damaged: "):
        return torch.load(path, map_location="cpu", weights_only=True)


def load_model(model: torch.nn.Module, path: Path) -> None:
    """Load a model's weights; InputError as ``load``, and for those of another model."""
    with refused(f"{path} holds no weights of this model: "):
        model.load_state_dict(load(path))
