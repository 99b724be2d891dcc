"""The models at hand as a table: what each part rests on, and how wrong it was on held-out groups."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.measure import archive
from lib.predict import registry
from lib.predict.cards import card_model
from lib.predict.cards.card_model import CardModel
from lib.predict.operators.parts import Part
from lib.predict.power import model as power_model

UNUSABLE = "none"  # the part of a file that holds no model
Row = dict[str, Any]


def summary() -> pd.DataFrame:
    """Return one row per part of every model at hand: device, dtype, part, rows, scores on held-out groups, source, licence.

    A file that holds no model is a row too, of part UNUSABLE, whose source says why.
    """
    rows = []
    for device, dtype, load in _files():
        try:
            rows += [{"device": device, "dtype": dtype, **part} for part in load()]
        except InputError as error:
            rows.append({"device": device, "dtype": dtype, "part": UNUSABLE, "source": f"unusable: {error}"})
    return pd.DataFrame(rows)


def _files() -> Iterator[tuple[str, str, Callable[[], list[Row]]]]:
    """Yield device, element type and loader of each file; conditions of a card may state another element type."""
    machines = {(f"{device}@{name}", dtype): path for name, folder in archive.machines(imported=True).items()
                for (device, dtype), path in registry.machine_files(folder).items() if path.parent != registry.SHIPPED}
    for (device, dtype), path in {**registry.model_files(), **machines}.items():
        yield device, dtype, partial(_kernels, path)
    for device, path in {**card_model.files_of_cards(), **card_model.files_of_cards(card_model.folder())}.items():
        yield device, "fp16", partial(_card, path)
    for path in power_model.model_files():
        yield *registry.key_of(path), partial(_power, *registry.key_of(path))


def _kernels(path: Path) -> list[Row]:
    model = registry.load(path)
    return [_part(name, part, model.facts) for name, part in model.parts.items()]


def _card(path: Path) -> list[Row]:
    model = CardModel.load(path)
    return [{"dtype": "bf16" if "bf16" in condition.precision else "fp16", "part": f"networks {condition.name}",
             "rows": int(fitted.scores["n"]), **_scores(fitted.scores), "interval ±%": math.expm1(fitted.half) * 100,
             "source": model.source, "licence": model.licence} for condition, fitted in model.conditions.items()]


def _power(device: str, dtype: str) -> list[Row]:
    model = power_model.of_device(device, dtype)
    return [_part(power_model.PART, model.part, model.facts)]


def _part(name: str, part: Part, facts: Mapping[str, Any]) -> Row:
    return {"part": name, "rows": part.rows, **_scores(part.scores), "interval ±%": math.expm1(np.mean(part.halves)) * 100,
            "source": f"that of {part.origin}" if part.origin else facts.get("source", ""), "licence": facts.get("licence", "")}


def _scores(scores: Mapping[str, float]) -> Row:
    return {"MAPE %": scores.get("mape"), "median %": scores.get("median"), "within 10 %": scores.get("within_10")}
