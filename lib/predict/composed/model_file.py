"""The file of a card's composed model: checked JSON, never code."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lib import paths
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict.composed.features import Condition, sustained
from lib.predict.composed.model import Fitted
from lib.predict.model_file import Device, Format, Saved, Unsaved, keyed
from lib.predict.operators.chip import Chip

FOLDER = paths.REFERENCE / "models" / "composed"
ANY = "any-card"  # what cards share, for those without a model of their own
RETRAIN = "train it again with: python -m lib models --train timm"


@dataclass(frozen=True)
class Composed(Saved):
    """The composed model of a card: what was fitted for each condition, and whose measurements these were.

    ``siblings``: the other cards that it was learned from, at rates that these and the card sustain. ``others``: what measured
    cards say of this one, for conditions that it was not measured under; it is in no file.
    """

    device: Device
    conditions: keyed(Condition, Fitted)
    source: str
    licence: str
    siblings: tuple[str, ...] = ()
    others: Unsaved = None

    FORMAT: ClassVar = Format("composed model", RETRAIN)

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

    @classmethod
    def load(cls, path: Path) -> "Composed":
        """Read a file; InputError names it and what is wrong with it."""
        model, cards = super().load(path), set(load_devices())
        is_card = model.device in cards or (model.device == ANY and model.siblings)
        if model.device != path.stem or not is_card or not set(model.siblings) <= cards:
            raise InputError(f"{path} holds the model of {model.device}, which its name or params/devices.yaml does not say; "
                             f"{RETRAIN}")
        return model


def files_of_cards(folder: Path | None = None) -> dict[str, Path]:
    """Return the files of composed models by card; that of any other card is ANY's."""
    return {path.stem: path for path in sorted((folder or FOLDER).glob("*.json"))}


def of_device(device: str, folder: Path | None = None) -> Composed | None:
    """Return the composed model of a card in a folder (default: that ships), or None; InputError for a damaged file."""
    path = (folder or FOLDER) / f"{device}.json"
    return Composed.load(path) if path.is_file() else None
