"""The file of a card's composed model: checked JSON, never code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from lib import csv_files, files, paths, store
from lib.config.base import parse
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict.composed import model
from lib.predict.composed.features import Condition, sustained
from lib.predict.composed.model import Fitted
from lib.predict.model_file import Array, Count, Entry, NotNegative, require
from lib.predict.operators.features_gpu import Chip

SCHEMA = 1
FOLDER = paths.REFERENCE / "models" / "composed"
ANY = "any-card"  # what cards share, for those without a model of their own
RETRAIN = "train it again with: python -m lib models --train timm"


def _ordered(pair: tuple[int, int]) -> tuple[int, int]:
    require(pair[0] <= pair[1], "the least batch size is above the largest")
    return pair


class _Condition(Entry):
    """One condition: how networks ran, the weights, half the interval, and the scores on families that were left out."""

    mode: Literal["infer", "train"]
    precision: Literal["amp_fp16", "amp_bf16", "bf16"]
    layout: Literal["nchw", "nhwc"]
    compiled: bool
    torch: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
    weights: Array
    half: NotNegative
    batches: Annotated[tuple[Count, Count], AfterValidator(_ordered)]
    basis: Literal["many", "few", "others"] = "many"
    scored: Annotated[str, Field(pattern=r"^(\w+-\w+-\w+-[0-9.]+)?$")] = ""
    corrected: Count = 0
    scores: dict[Literal["mape", "median", "p90", "bias", "within_10", "n", "families"], float]

    @model_validator(mode="after")
    def _whole(self) -> "_Condition":
        require(self.weights.shape == (model.SIZE,), f"has {self.weights.shape} weights, not {model.SIZE}")
        return self


class _File(Entry):
    """A whole file."""

    version: Literal[1] = Field(alias="schema")
    source: str
    licence: str
    device: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    siblings: tuple[str, ...] = ()
    conditions: Annotated[tuple[_Condition, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Composed:
    """The composed model of a card: what was fitted for each condition, and whose measurements these were.

    ``siblings``: the other cards that it was learned from, at rates that these and the card sustain. ``others``: what measured
    cards say of this one, for conditions that it was not measured under; it is in no file.
    """

    device: str
    conditions: Mapping[Condition, Fitted]
    source: str
    licence: str
    siblings: tuple[str, ...] = ()
    others: "Composed | None" = None

    def under(self, condition: Condition) -> "Composed":
        """Return the model that knows a condition: this one, or what others say; InputError where neither does."""
        several = [one for one in (self, self.others) if one and condition in one.conditions]
        if not several:
            raise InputError(f"{self.device} was not learned under {condition.name}; there are: "
                             f"{choices(one.name for one in self.conditions)}")
        return several[0]

    @property
    def chip(self) -> Chip:
        """Return what the vendor states of the card, in 16 bits."""
        vendor = load_devices()[self.device]
        return sustained(vendor) if self.siblings else Chip.of(vendor, "fp16")

    def save(self, path: Path) -> Path:
        """Write the file, in one step."""
        several = [{**asdict(condition), "weights": Array.plain(fitted.weights.astype("<f4")), "half": fitted.half,
                    "batches": fitted.batches, "basis": fitted.basis, "scored": fitted.scored, "corrected": fitted.corrected,
                    "scores": dict(fitted.scores)}
                   for condition, fitted in self.conditions.items()]
        text = store.encoded_json({"schema": SCHEMA, "source": self.source, "licence": self.licence, "device": self.device,
                                   "siblings": self.siblings, "conditions": several})
        parse(_File, text, f"{path} is not written")
        return files.replace(path, text)

    @classmethod
    def load(cls, path: Path) -> "Composed":
        """Read a file; InputError names it and what is wrong with it."""
        entry = parse(_File, csv_files.bytes_of(path), f"{path} holds no composed model, or is damaged; {RETRAIN}")
        is_card = entry.device in load_devices() or (entry.device == ANY and entry.siblings)
        if entry.device != path.stem or not is_card or not set(entry.siblings) <= set(load_devices()):
            raise InputError(f"{path} holds the model of {entry.device}, which its name or params/devices.yaml does not say; "
                             f"{RETRAIN}")
        several = {Condition(one.mode, one.precision, one.layout, one.compiled, one.torch):
                   Fitted(one.weights.array().astype(float), one.half, one.scores, one.batches, one.basis,
                          one.scored, one.corrected)
                   for one in entry.conditions}
        return cls(entry.device, several, entry.source, entry.licence, entry.siblings)


def files_of_cards(folder: Path | None = None) -> dict[str, Path]:
    """Return the files of composed models by card; that of any other card is ANY's."""
    return {path.stem: path for path in sorted((folder or FOLDER).glob("*.json"))}


def of_device(device: str, folder: Path | None = None) -> Composed | None:
    """Return the composed model of a card in a folder (default: that ships), or None; InputError for a damaged file."""
    path = (folder or FOLDER) / f"{device}.json"
    return Composed.load(path) if path.is_file() else None
