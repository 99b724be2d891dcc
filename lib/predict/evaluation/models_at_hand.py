"""The models at hand as a table: what each part rests on, and how wrong it was on held-out groups."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure import archive
from lib.predict import registry
from lib.predict.composed import model_file
from lib.predict.composed.cards import siblings
from lib.predict.composed.model_file import Composed
from lib.predict.operators.parts import Part
from lib.predict.power import model as power_model

UNUSABLE = "none"  # the part of a file that holds no model


def summary() -> pd.DataFrame:
    """Return a row a part of every model at hand: device, dtype, part, rows, scores on held-out groups, source, licence.

    A file that holds no model is a row too, of part UNUSABLE, whose source says why.
    """
    rows = []
    machines = {(f"{device}@{name}", dtype): path for name, folder in archive.machines(imported=True).items()
                for (device, dtype), path in registry.machine_files(folder).items() if path.parent != registry.SHIPPED}
    for (device, dtype), path in {**registry.model_files(), **machines}.items():
        try:
            model = registry.load(path)
        except InputError as error:
            rows.append({"device": device, "dtype": dtype, "part": UNUSABLE, "source": f"unusable: {error}"})
            continue
        rows += [_summary_row(device, dtype, name, part, model.facts) for name, part in model.parts.items()]
    return pd.DataFrame(rows + _composed_rows() + _power_rows())


def _composed_rows() -> list[dict[str, Any]]:
    """Return a row a condition of every composed model of a card, as ``summary`` has them; rows are networks."""
    rows = []
    for device, path in {**model_file.files_of_cards(), **model_file.files_of_cards(siblings.folder())}.items():
        try:
            model = Composed.load(path)
        except InputError as error:
            rows.append({"device": device, "dtype": "fp16", "part": UNUSABLE, "source": f"unusable: {error}"})
            continue
        rows += [{"device": device, "dtype": "bf16" if "bf16" in condition.precision else "fp16",
                  "part": f"networks {condition.name}", "rows": int(fitted.scores["n"]), "MAPE %": fitted.scores["mape"],
                  "median %": fitted.scores["median"], "within 10 %": fitted.scores["within_10"],
                  "interval ±%": math.expm1(fitted.half) * 100, "source": model.source, "licence": model.licence}
                 for condition, fitted in model.conditions.items()]
    return rows


def _power_rows() -> list[dict[str, Any]]:
    """Return a row a power model, as ``summary`` has them: its errors are of watts."""
    rows = []
    for path in power_model.model_files():
        device, dtype = registry.key_of(path)
        try:
            model = power_model.of_device(device, dtype)
        except InputError as error:
            rows.append({"device": device, "dtype": dtype, "part": UNUSABLE, "source": f"unusable: {error}"})
            continue
        rows.append(_summary_row(device, dtype, power_model.PART, model.part, model.facts))
    return rows


def _summary_row(device: str, dtype: str, name: str, part: Part, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"device": device, "dtype": dtype, "part": name, "rows": part.rows, "MAPE %": part.scores.get("mape"),
            "median %": part.scores.get("median"), "within 10 %": part.scores.get("within_10"),
            "interval ±%": (np.exp(np.mean(part.halves)) - 1) * 100,
            "source": f"that of {part.origin}" if part.origin else facts.get("source", ""),
            "licence": facts.get("licence", "")}
