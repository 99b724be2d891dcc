"""Synthetic stand-ins for MedMNIST files: same layout, shapes and classes, other images."""

import io
import math
from pathlib import Path

import numpy as np

from lib import files, paths
from lib.work.medmnist_files import SPLITS, facts, file_name

PERIOD = 64  # sizes stay equal modulo this, so batches of up to 64 = 2^k have their odd last batch
MOST_MB = 64  # of the images of a split


def write_stand_in(dataset: str, size: int) -> Path:
    """Write the synthetic file of a dataset, once; return its path."""
    path = paths.SYNTHETIC / file_name(dataset, size)
    if not path.is_file():
        arrays = {}
        for number, split in enumerate(SPLITS):
            images, labels = _split(dataset, size, number)
            arrays |= {f"{split}_images": images, f"{split}_labels": labels}
        content = io.BytesIO()
        np.savez(content, **arrays)
        files.replace(path, content.getvalue())
    return path


def _split(dataset: str, size: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the images and labels of a split; a network can learn the label from the texture."""
    stated = facts(dataset)
    colour = (3,) if stated.channels == 3 and stated.spatial == 2 else ()
    real, shape = stated.samples[number], (size,) * stated.spatial + colour
    classes, width = (2, stated.classes) if stated.multi_label else (stated.classes, 1)
    periods = max(1, MOST_MB * 10**6 // math.prod(shape) // PERIOD)
    count = min(real, min(periods, 32) * PERIOD + real % PERIOD)
    draw = np.random.default_rng([1, size, *dataset.encode(), number])
    labels = draw.integers(0, classes, (count, width))
    images = draw.integers(0, 96, (count, *shape), dtype=np.uint8)
    rows = np.arange(size)
    for row, label in enumerate(labels):
        wave = np.zeros(size)
        for kind in np.flatnonzero(label) if stated.multi_label else label:
            wave += np.sin(2 * np.pi * (kind + 1) * rows / size)
        wave = (80 + 60 * wave / max(1.0, np.abs(wave).max())).astype(np.uint8)
        images[row] += wave.reshape(size, *[1] * (len(shape) - 1))
    return images, labels.astype(np.uint8)
