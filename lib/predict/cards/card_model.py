"""The model of whole networks on a card: its file, checked JSON and never code, and which one answers for a card."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from lib import paths
from lib.config.definitions import load_devices
from lib.errors import InputError, choices
from lib.predict.boards import UNKNOWN_ARCHITECTURE_FACTOR
from lib.predict.cards.features import Condition, sustained
from lib.predict.cards.kernel_sum import FittedWeights
from lib.predict.model_file import Device, Format, Saved, Unsaved, keyed
from lib.predict.operators.chip import Chip

FOLDER = paths.REFERENCE / "models" / "composed"
ANY = "any-card"  # what cards share, for those without a model of their own
_MATRIX_ARCHITECTURES = frozenset("volta turing ampere ada hopper blackwell".split())  # their matrix units take 16 bits
SOURCE = {"source": "timm", "licence": "Apache-2.0, huggingface/pytorch-image-models results"}  # of the models that ship
RETRAIN = "train it again with: python -m lib models --train timm"


@dataclass(frozen=True)
class CardModel(Saved):
    """The model of whole networks on a card: the weights of each condition, and the source of the measurements.

    ``siblings``: the cards it was trained on, at sustained rates (``features.sustained``); empty for a card's own.
    ``shared_model``: answers for conditions that this card was not measured under; not saved.
    """

    device: Device
    conditions: keyed(Condition, FittedWeights)
    source: str
    licence: str
    siblings: tuple[str, ...] = ()
    shared_model: Unsaved = None

    FORMAT: ClassVar = Format("model of whole networks", RETRAIN)

    def under(self, condition: Condition) -> "CardModel":
        """Return the model that was fitted under a condition: this one, else the shared one; InputError if neither was."""
        models = [model for model in (self, self.shared_model) if model and condition in model.conditions]
        if not models:
            raise InputError(f"{self.device} was not learned under {condition.name}; there are: "
                             f"{choices(learned.name for learned in self.conditions)}")
        return models[0]

    @property
    def chip(self) -> Chip:
        """Return what the vendor states of the card, in 16 bits."""
        vendor = load_devices()[self.device]
        return sustained(vendor) if self.siblings else Chip.of(vendor, "fp16")

    @classmethod
    def load(cls, path: Path) -> "CardModel":
        """Read a file; InputError names it and what is wrong with it."""
        model, cards = super().load(path), set(load_devices())
        is_card = model.device in cards or (model.device == ANY and model.siblings)
        if model.device != path.stem or not is_card or not set(model.siblings) <= cards:
            raise InputError(f"{path} holds the model of {model.device}, which its name or params/devices.yaml does not say; "
                             f"{RETRAIN}")
        return model


def measured_under(condition: Condition) -> list[str]:
    """Return the cards whose networks were measured under a condition."""
    return [device for device in files_of_cards() if device != ANY and condition in of_device(device).conditions]


def files_of_cards(folder: Path | None = None) -> dict[str, Path]:
    """Return the files of models of whole networks by card; that of any other card is ANY's."""
    return {path.stem: path for path in sorted((folder or FOLDER).glob("*.json"))}


def of_device(device: str, folder: Path | None = None) -> CardModel | None:
    """Return the model of a card in a folder (default: that ships), or None; InputError for a damaged file."""
    path = files_of_cards(folder).get(device)
    return CardModel.load(path) if path else None


def folder() -> Path:
    """Return the folder of models of whole networks that were calibrated here."""
    return paths.MODELS / "composed"


def load_for(device: str, shipped: bool = False) -> CardModel | None:
    """Return the model of whole networks of a card; None without one.

    For a condition in which this card was not measured, the shared model answers. ``shipped``: ignore what was calibrated here.
    Raises InputError for a damaged file.
    """
    card = (None if shipped else of_device(device, folder())) or of_device(device)
    shared = shared_model(device)
    return replace(card, shared_model=shared) if card else shared


def shared_model(device: str) -> CardModel | None:
    """Return the shared model applied to this card; None without matrix units, or if no shared model ships.

    Training was measured on one card, whose weights are taken: they could not be tested on a card left out.
    """
    vendor, shared = load_devices().get(device), of_device(ANY)
    if shared is None or vendor is None or vendor.architecture not in _MATRIX_ARCHITECTURES or "fp16" not in vendor.peak_gflops:
        return None
    alike = {load_devices()[sibling].architecture for sibling in shared.siblings}
    wider = 1 if vendor.architecture in alike else UNKNOWN_ARCHITECTURE_FACTOR
    of_one = {condition: replace(fitted, basis="others") for sibling in shared.siblings
              for condition, fitted in (of_device(sibling) or shared).conditions.items() if condition.mode == "train"}
    return replace(shared, device=device, conditions={
        condition: replace(fitted, half=fitted.half * wider) for condition, fitted in (of_one | shared.conditions).items()})
