"""The models at hand as a table: what each part rests on, and how wrong it was on held-out groups."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure import archive
from lib.predict import registry
from lib.predict.cards import card_model
from lib.predict.cards.card_model import CardModel
from lib.predict.operators.cost_model import CostModel

UNUSABLE = "none"  # the part of a file that holds no model
Row = dict[str, Any]


def summary() -> pd.DataFrame:
    """Return one row per part of every model at hand: device, dtype, part, rows, scores on held-out groups, source, licence.

    A file that holds no model is a row too, of part UNUSABLE, whose source says why.
    """
    machines = {(f"{device}@{name}", dtype): path for name, folder in archive.machines(imported=True).items()
                for (device, dtype), path in registry.machine_files(folder).items() if path.parent != registry.SHIPPED}
    cards = card_model.files_of_cards() | card_model.files_of_cards(card_model.folder())
    files = [*((*key, registry.load, path) for key, path in (registry.model_files() | machines).items()),
             *((device, "fp16", CardModel.load, path) for device, path in cards.items())]  # conditions may state another dtype
    rows = []
    for device, dtype, load, path in files:
        try:
            rows += [{"device": device, "dtype": dtype, **part} for part in _parts(load(path))]
        except InputError as error:
            rows.append({"device": device, "dtype": dtype, "part": UNUSABLE, "source": f"unusable: {error}"})
    return pd.DataFrame(rows)


def _parts(model: CostModel | CardModel) -> list[Row]:
    if isinstance(model, CardModel):
        return [{"dtype": "bf16" if "bf16" in condition.precision else "fp16",
                 **_row(f"networks {condition.name}", int(fitted.scores["n"]), fitted.scores, fitted.half, model.source,
                        model.licence)} for condition, fitted in model.conditions.items()]
    source, licence = (model.facts.get(name, "") for name in ("source", "licence"))
    return [_row(name, part.rows, part.scores, np.mean(part.halves), f"that of {part.origin}" if part.origin else source,
                 licence) for name, part in model.parts.items()]


def _row(name: str, rows: int, scores: Mapping[str, float], half: float, source: str, licence: str) -> Row:
    return {"part": name, "rows": rows, "MAPE %": scores.get("mape"), "median %": scores.get("median"),
            "within 10 %": scores.get("within_10"), "interval ±%": math.expm1(half) * 100, "source": source, "licence": licence}
