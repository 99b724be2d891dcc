"""The config of a run, ``TrainConfig``, checked field by field, and the named configs of ``params/training.yaml``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator

from lib import files, paths
from lib.config.base import Count, Positive, Seed, Strict, Threads, number, some, whole
from lib.config.definitions import table
from lib.errors import choices, entry
from lib.work import medmnist_files

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
_DTYPE_NAMES = {other: name for name, short in DTYPES.items() for other in (short, name.removeprefix("torch."))}
_USUAL = {"cross_entropy", "val_acc@1", "val_loss"}  # known without the libraries of losses and metrics
Amount = number(0, 1e6)
Classes = tuple[str, ...]  # names in the order of their indices
Folder = Annotated[str, Field(pattern=rf"^{files.NAME}(/{files.NAME})*$", max_length=500)]


def _secret(value: Any) -> Any:
    """Take any value as a secret: an error about its type would show it."""
    return value if value is None or isinstance(value, SecretStr) else SecretStr(str(value))


def _printable(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise ValueError("is no name nor path")
    return value


def _loss(value: str) -> str:
    if value == "CE":  # as the original platform names it
        return "cross_entropy"
    if value not in _USUAL:
        from lib.finetune.losses import LOSSES

        if value not in LOSSES:
            raise ValueError(f"is no loss; there are: {choices(LOSSES)}")
    return value


Place = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]


class TrainConfig(Strict):
    """A fine-tuning run: the original platform's 27 fields in their order, six of its later version, and ours.

    ``root``: a folder with train/, val/ and perhaps test/, a folder a class in each; ``medmnist:pathmnist``;
    ``synthetic:pathmnist``. ``model_flavour``: a Hugging Face checkpoint (hub id or folder), a torchvision classifier, or ours.
    ``batch_size`` is that of all processes together. ``tb_root`` and ``ckpt_dir`` name folders within the run's; a name that
    begins with ``experiments/`` is a folder of the checkout (or of LIB_OUTPUT), in which each run has DATASET/RUN.
    ``max_datapoints_per_class`` caps the ``capped_splits``.
    """

    root: Place
    model_flavour: Place
    loss_name: Annotated[str, AfterValidator(_loss)]
    batch_size: Positive = 256
    num_workers: whole(0, 256) = 4
    prefetch_factor: whole(1, 1024) = 4
    persistent_workers: bool = False
    epochs: Positive = 10
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: number(above=0, most=1e3) = 1e-3
    weight_decay: Amount = 0.05
    max_grad_norm: Amount = 1.0
    warmup_ratio: number(0, 1) = 0.05
    grad_accum_steps: Positive = 1
    seed: Seed = 42
    autocast_dtype: Annotated[Literal[*DTYPES], BeforeValidator(lambda value: _DTYPE_NAMES.get(str(value), value))] = \
        "torch.bfloat16"
    load_pretrained: bool = True
    run_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    tb_root: Folder = "runs"
    eval_topk: tuple[Positive, ...] = (3, 5)
    model_suffix: Annotated[str, Field(max_length=100)] = ""
    freeze_backbone: bool = False
    ckpt_dir: Folder = "checkpoints"
    monitor_metric: str = "val_acc@1"
    monitor_mode: Annotated[Literal["max", "min"], Field(validate_default=True)] = "max"
    save_per_epoch_checkpoint: bool = False
    max_datapoints_per_class: Positive | some(Positive) = 10_000

    hf_token: Annotated[SecretStr | None, BeforeValidator(_secret)] = Field(None, exclude=True, repr=False)
    gpu_batch_aug: bool = False
    cpu_color_jitter: bool = False
    class_labels: Classes | None = None
    label2id: dict[str, Count] | None = None
    id2label: dict[Count, str] | None = None

    image_size: whole(0, 2048) = 0  # 0: the model's own
    device: str = "auto"
    devices: whole(1, 64) = 1  # of one type that train it together: they share each batch
    threads: Threads = 0
    channels_last: bool = False
    deterministic: bool = False
    profile: bool = True  # a row a batch, which on a GPU waits for each
    mlflow: bool = True  # log the config and the metrics of each epoch to MLflow, too
    capped_splits: tuple[Literal["train", "val", "test"], ...] = ("train", "val", "test")
    checkpoint_steps: Positive = 500  # optimizer steps between two states within an epoch

    @field_validator("monitor_metric")
    @classmethod
    def _monitor_exists(cls, value: str, info) -> str:
        if value not in _USUAL:
            from lib.finetune.metrics import check_monitor

            check_monitor(value, info.data.get("eval_topk", ()))
        return value

    @field_validator("monitor_mode")
    @classmethod
    def _mode_fits(cls, value: str, info) -> str:
        metric = info.data.get("monitor_metric", "")
        if metric and value != (right := "min" if metric == "val_loss" else "max"):
            raise ValueError(f"would keep the worst {metric}; use {right!r}")
        return value

    @field_validator("class_labels", "label2id", "id2label")
    @classmethod
    def _labels_fit(cls, value: Classes | dict | None, info) -> Classes | dict | None:
        names = _names(value) if value else None
        for other in ("class_labels", "label2id"):
            if names and (earlier := info.data.get(other)) and names != _names(earlier):
                raise ValueError(f"does not fit {other}: {choices(names)} are not {choices(_names(earlier))}")
        return value

    @property
    def labels(self) -> Classes | None:
        """The names of the classes in their order, where the config gives them."""
        stated = self.class_labels or self.id2label or self.label2id
        return _names(stated) if stated else None

    @property
    def precision(self) -> str:
        """Return the short name of ``autocast_dtype``."""
        return DTYPES[self.autocast_dtype]

    @property
    def medmnist(self) -> str:
        """Return the MedMNIST dataset that ``root`` names, empty for a folder; InputError for one that does not exist."""
        source, _, name = self.root.partition(":")
        if source not in ("medmnist", "synthetic"):
            return ""
        entry(medmnist_files.info(), name, "dataset", f"in root {self.root!r}")
        return name

    @property
    def image_folder(self) -> Path:
        """Return the folder that ``root`` names."""
        return paths.ROOT / Path(self.root).expanduser()

    @property
    def dataset(self) -> str:
        """Return the short name of the dataset, such as pathmnist."""
        return self.medmnist or self.image_folder.resolve().name

    def folders(self, run: Path) -> tuple[Path, Path]:
        """Return the folders of TensorBoard's files and of the checkpoints of a run in the folder ``run``."""
        outside = Path(run.parent.name, run.name)
        tensorboard, checkpoints = (
            paths.OUTPUT / name / outside if name.startswith("experiments/") else run / name
            for name in (self.tb_root, self.ckpt_dir))
        return tensorboard, checkpoints

    def content(self) -> dict[str, Any]:
        """Return the config as JSON holds it; without the token."""
        return self.model_dump(mode="json")


def _names(stated: Classes | dict) -> Classes:
    """Return the classes of a list or of either map in the order of their indices; ValueError unless these are 0, 1, ..."""
    if isinstance(stated, tuple):
        stated = dict(enumerate(stated))
    by_index = {index: name for name, index in stated.items()} if isinstance(next(iter(stated), 0), str) else stated
    if sorted(by_index) != list(range(len(stated))) or len(set(by_index.values())) < len(stated):
        raise ValueError(f"must number {len(stated)} different names from 0 to {len(stated) - 1}")
    return tuple(by_index[index] for index in range(len(stated)))


def load_configs(path: Path = paths.PARAMS / "training.yaml") -> dict[str, TrainConfig]:
    """Read named configs, a mapping ``configs:``; InputError names the file, the entry and each wrong value."""
    return table(path, "configs", TrainConfig, named="")
