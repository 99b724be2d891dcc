"""Scores of cards that were published without their rows: read where no rows ``held_out`` lie beside a model."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib import csv_files
from lib.predict.composed.model_file import ANY, RETRAIN
from lib.predict.held_out import ALL, CORRECTED_CARDS, FAMILIES, GAINS, NETWORKS, NEW_CARDS, NOISE

_SCORES = ("mape", "median", "bias", "n")
_OF_GAINS = ("before", "after", "torch", "sign", "sign_large", "n_large", "constant_mape")
_FILES = {"families.csv": ("device", "condition", "group", "name", *_SCORES, "coverage", "half"),
          "new_cards.csv": ("device", "condition", "networks", *_SCORES, "coverage"),
          "gains.csv": ("device", *_SCORES, *_OF_GAINS)}
_WHAT = {"all": NETWORKS, "kind": NETWORKS, "family": FAMILIES, "measured again": NOISE}


def of_device(device: str, folder: Path) -> pd.DataFrame:
    """Return the scores of a card, or of ANY, as ``families.scores`` does; InputError for a file without its columns."""
    return _of_device(device, folder, tuple(path.stat().st_mtime_ns for name in _FILES if (path := folder / name).is_file()))


@cache
def _of_device(device: str, folder: Path, _: tuple[int, ...]) -> pd.DataFrame:
    families, cards, gains = (csv_files.with_columns(folder / name, names, RETRAIN, dtype={"torch": str})
                              for name, names in _FILES.items())
    again, against = families["group"] == "measured again", "none: " + families["name"] + " against it"
    families = families.assign(what=families["group"].map(_WHAT), kind=families["name"].where(~again, ALL),
                               left_out=against.where(again, "families of timm"))
    with_some = cards["networks"].astype(str) + " of its networks"
    cards = cards.assign(what=np.where(cards["networks"] > 0, CORRECTED_CARDS, NEW_CARDS),
                         kind=with_some.where(cards["networks"] > 0, ALL), left_out="the card and families of timm")
    together = cards[cards["networks"] == 0].assign(device=ANY, what=NETWORKS)
    weighted = together.assign(coverage=together["coverage"] * together["n"]).groupby(
        ["device", "what", "kind", "condition", "left_out"], as_index=False)[["coverage", "n"]].sum()
    weighted["coverage"] /= weighted["n"]
    gains = gains.assign(what=GAINS, kind=ALL, condition=gains["before"],
                         left_out=np.where(gains["device"] == ANY, "the card and families of timm", "families of timm"))
    parts = (weighted, cards, gains[gains["device"] == ANY]) if device == ANY else \
        (families[families["device"] == device], gains[gains["device"] == device])
    lines = pd.concat(parts, ignore_index=True).rename(columns={"coverage": "cover"}).reindex(
        columns=["device", "what", "kind", "condition", "left_out", *_SCORES, "cover", "half", *_OF_GAINS])
    train = lines["condition"].astype(str).str.startswith("train")
    return lines.assign(mode=np.where(train, "train", "infer")).astype({"n": int})
