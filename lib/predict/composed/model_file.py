"""The file of a card's composed model: checked JSON, never code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from lib import csv_files, files, paths, store
from lib.config.base import parse
from lib.config.definitions import load_devices
from lib.errors import InputError
from lib.predict.composed import model
from lib.predict.composed.features import Condition
from lib.predict.composed.model import Fitted
from lib.predict.model_file import Array, Count, Entry, NotNegative, require
from lib.predict.operators.features_gpu import Chip

SCHEMA = 1
FOLDER = paths.REFERENCE / "models" / "composed"
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
    conditions: Annotated[tuple[_Condition, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Composed:
    """The composed model of a card: what was fitted for each condition, and whose measurements these were."""

    device: str
    conditions: Mapping[Condition, Fitted]
    source: str
    licence: str

    @property
    def chip(self) -> Chip:
        """Return what the vendor states of the card, in 16 bits."""
        return Chip.of(load_devices()[self.device], "fp16")

    def save(self, path: Path) -> Path:
        """Write the file, in one step."""
        several = [{**asdict(condition), "weights": Array.plain(fitted.weights.astype("<f4")), "half": fitted.half,
                    "batches": fitted.batches, "scores": dict(fitted.scores)} for condition, fitted in self.conditions.items()]
        text = store.encoded_json({"schema": SCHEMA, "source": self.source, "licence": self.licence, "device": self.device,
                                   "conditions": several})
        parse(_File, text, f"{path} is not written")
        return files.replace(path, text)

    @classmethod
    def load(cls, path: Path) -> "Composed":
        """Read a file; InputError names it and what is wrong with it."""
        entry = parse(_File, csv_files.bytes_of(path), f"{path} holds no composed model, or is damaged; {RETRAIN}")
        if entry.device != path.stem or entry.device not in load_devices():
            raise InputError(f"{path} holds the model of {entry.device}, which its name or params/devices.yaml does not say; "
                             f"{RETRAIN}")
        several = {Condition(one.mode, one.precision, one.layout, one.compiled, one.torch):
                   Fitted(one.weights.array().astype(float), one.half, one.scores, one.batches) for one in entry.conditions}
        return cls(entry.device, several, entry.source, entry.licence)


def files_of_cards(folder: Path | None = None) -> dict[str, Path]:
    """Return the files of composed models by card."""
    return {path.stem: path for path in sorted((folder or FOLDER).glob("*.json"))}


def of_device(device: str, folder: Path | None = None) -> Composed | None:
    """Return the composed model that ships of a card, or None; InputError for a damaged file."""
    path = (folder or FOLDER) / f"{device}.json"
    return Composed.load(path) if path.is_file() else None
