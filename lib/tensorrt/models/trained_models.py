"""Trained layer models as files: ``data/trained_models/<kind>/<target>/<device>.json``, shipped ones and this machine's own."""

from dataclasses import dataclass
from pathlib import Path

from lib import files, paths
from lib.errors import InputError, choices
from lib.tensorrt.engine import KINDS
from lib.tensorrt.models.layer_model import TARGETS, LayerModel

SHIPPED = paths.ROOT / "data" / "trained_models"
OWN = paths.DATA / "trained_models"
SHIPPED_DEVICE = "rtx-3060-laptop"


@dataclass(frozen=True)
class TrainedModels:
    """The models of one device by kind of layer and target; ``missing`` says of each pair that has none why."""

    device: str
    models: dict[tuple[str, str], LayerModel]

    def missing(self, kind: str, target: str) -> str:
        """Return why there is no model of a target for a kind of layer; empty where there is one."""
        if (kind, target) in self.models:
            return ""
        return f"no {target} of {kind} layers was measured on {self.device}" if kind in KINDS.values() \
            else f"no model of {kind} layers"


def save(model: LayerModel, folder: Path = OWN) -> Path:
    """Write a model to its place; an earlier one of the same device, kind and target is replaced."""
    return model.save(files.folder(folder / model.kind / model.target) / f"{model.device}.json")


def devices(folders: tuple[Path, ...] = (OWN, SHIPPED)) -> list[str]:
    """Return the devices that have models in ``folders``."""
    return sorted({path.stem for folder in folders for kind in KINDS.values() for path in folder.glob(f"{kind}/*/*.json")})


def load(device: str = "", folders: tuple[Path, ...] = (OWN, SHIPPED)) -> TrainedModels:
    """Read a device's models from the first of ``folders`` that has each; no name: the only device there is.

    Raises InputError, which lists the devices.
    """
    names = devices(folders)
    name = device or (names[0] if len(names) == 1 else "")
    if name not in names:
        which = f" of {device!r}" if device else ""
        raise InputError(f"{'no' if device or not names else 'several'} layer models{which} in {choices(map(str, folders))}; "
                         f"there are those of: {choices(names) or 'no device'}")
    models = {}
    for kind in KINDS.values():
        for target in TARGETS:
            path = next((path for folder in folders if (path := folder / kind / target / f"{name}.json").is_file()), None)
            if path:
                model = models[kind, target] = LayerModel.load(path)
                if (model.kind, model.target) != (kind, target):
                    raise InputError(f"{path} is a model of {model.target} of {model.kind} layers, not of {target} of {kind} "
                                     "ones")
    return TrainedModels(next(iter(models.values())).device, models)


def gather(models: list[LayerModel]) -> TrainedModels:
    """Return models that were loaded one by one; InputError where they are of several devices."""
    devices = sorted({model.device for model in models})
    if len(devices) > 1:
        raise InputError(f"models of several devices cannot predict one engine: {choices(devices)}")
    return TrainedModels(devices[0], {(model.kind, model.target): model for model in models})
