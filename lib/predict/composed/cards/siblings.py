"""The composed model that answers for a card: its own, calibrated here or shipped, or else what measured cards share."""

from dataclasses import replace

from lib import paths
from lib.config.definitions import load_devices
from lib.predict.composed import model_file
from lib.predict.composed.model_file import ANY, Composed

_CORES = frozenset("volta turing ampere ada hopper blackwell".split())  # architectures whose matrix units take 16 bits
_STRANGER = 2  # times as wide is the interval of an architecture that no measured card is of


def folder():
    """Return where composed models lie that were calibrated here."""
    return paths.MODELS / "composed"


def of_card(device: str, shipped: bool = False) -> Composed | None:
    """Return the composed model of a card, see above; None where nothing is known of its like.

    Under conditions that it was not measured under others answer for it, too. ``shipped``: none that was calibrated here.
    Raises InputError for a damaged file.
    """
    own = (None if shipped else model_file.of_device(device, folder())) or model_file.of_device(device)
    others = of_others(device)
    return replace(own, others=others) if own else others


def of_others(device: str) -> Composed | None:
    """Return what measured cards say of another one with matrix units; None where it has none, or none ship."""
    vendor, shared = load_devices().get(device), model_file.of_device(ANY)
    if shared is None or vendor is None or vendor.architecture not in _CORES or "fp16" not in vendor.peak_gflops:
        return None
    alike = {load_devices()[sibling].architecture for sibling in shared.siblings}
    wider = 1 if vendor.architecture in alike else _STRANGER
    return replace(shared, device=device, conditions={
        condition: replace(fitted, half=fitted.half * wider) for condition, fitted in shared.conditions.items()})
