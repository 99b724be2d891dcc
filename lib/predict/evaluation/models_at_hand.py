"""The models at hand as a table: what each part rests on, and how wrong it was on held-out groups."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError, choices
from lib.measure import archive
from lib.predict import registry
from lib.predict.gpu import model as gpu_model
from lib.predict.gpu import scores
from lib.predict.gpu.model import GpuModel
from lib.predict.operators.cost_model import CostModel
from lib.predict.scores import score_draws

UNUSABLE = "none"  # the part of a file that holds no model
Row = dict[str, Any]


def summary() -> pd.DataFrame:
    """Return one row per part of every model at hand: device, dtype, part, rows, scores on held-out groups, source, licence.

    A file that holds no model is a row too, of part UNUSABLE, whose source says why.
    """
    machines = {(f"{device}@{name}", dtype): path for name, folder in archive.machines(imported=True).items()
                for (device, dtype), path in registry.machine_files(folder).items() if path.parent != registry.SHIPPED}
    files = [*((*key, registry.load, path) for key, path in (registry.model_files() | machines).items()),
             ("every GPU", "", GpuModel.load, gpu_model.PATH)]
    rows = []
    for device, dtype, load, path in files:
        try:
            rows += [{"device": device, "dtype": dtype, **part} for part in _parts(load(path))]
        except InputError as error:
            rows.append({"device": device, "dtype": dtype, "part": UNUSABLE, "source": f"unusable: {error}"})
    return pd.DataFrame(rows)


def _parts(model: CostModel | GpuModel) -> list[Row]:
    if isinstance(model, GpuModel):
        table = scores.rows()
        lines = score_draws(table, ["what", "condition"])
        return [_row(f"{line.what}, {line.condition}", line.n, line._asdict(), math.nan, choices(model.sources),
                     choices(dict.fromkeys(model.sources.values()))) for line in lines.itertuples()]
    source, licence = (model.facts.get(name, "") for name in ("source", "licence"))
    return [_row(name, part.rows, part.scores, np.mean(part.halves), f"that of {part.origin}" if part.origin else source,
                 licence) for name, part in model.parts.items()]


def _row(name: str, rows: int, scores: Mapping[str, float], half: float, source: str, licence: str) -> Row:
    return {"part": name, "rows": rows, "MAPE %": scores.get("mape"), "median %": scores.get("median"),
            "within 10 %": scores.get("within_10"), "interval ±%": math.expm1(half) * 100, "source": source, "licence": licence}
