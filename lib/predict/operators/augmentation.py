"""Data augmentation: operators that lie between measured ones, on which a small network is distilled from a large one."""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.work.graph import families, spaces

_TAKEN = 0.35  # the chance that a parameter comes from the other operator
_TOGETHER = {"padding": "kernel", "width": "height", "depth": "height"}  # what belongs together is taken together
_VAIN = 5
_ALIKE = ("op", "kind", "layout", "dtype", "hardware_id")


def crossed(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return up to ``count`` operators whose parameters come from two measured ones of the same family and kind.

    Columns: op, pass, hardware_id, the parameters, flops, bytes. What cannot be (a kernel larger than its input) is left out.
    """
    draw, alike = np.random.default_rng(0), rows.groupby([rows[name].fillna("") for name in _ALIKE if name in rows], sort=False)
    return pd.DataFrame([operator for _, part in alike for operator in
                         _crossed(part.to_dict("records"), round(len(part) / len(rows) * count), draw)])


def _crossed(group: list[dict], count: int, draw: np.random.Generator) -> Iterator[dict]:
    op, made = group[0]["op"], 0
    for _ in range(_VAIN * count):
        if made >= count:
            return
        first, second = (group[place] for place in draw.integers(len(group), size=2))
        taken, values = {}, {}
        for name in families.family(op).parameters:
            stem = re.sub("_[dhw]$", "", name)
            block = _TOGETHER.get(stem, stem)
            if block not in taken:
                taken[block] = draw.random() < _TAKEN
            value = (second if taken[block] else first).get(name)
            if not pd.isna(value) and value != "":
                values[name] = value if isinstance(value, str) else int(value)
        if op.startswith("conv") and first.get("groups", 1) > 1 and first["groups"] == first["in_channels"]:
            values["groups"] = "depthwise"
        try:
            config = spaces.config(op, spaces.fitted(op, values), group[0].get("dtype") or "fp32", first["pass"])
            flops, moved = spaces.work(config.ops())
        except InputError:
            continue
        made += 1
        yield {"op": op, "pass": first["pass"], "hardware_id": first.get("hardware_id", ""), "flops": flops, "bytes": moved,
               **dict(config.parameters)}
