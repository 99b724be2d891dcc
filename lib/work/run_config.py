"""How a network runs (``RunConfig``), and the state of the device meanwhile (``DeviceCondition``)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lib.errors import InputError, entry
from lib.names import known
from lib.work import networks
from lib.work.dtypes import AUTOCAST
from lib.work.graph.ops import MODES
from lib.work.runtimes import RUNTIMES, TORCH

INT8 = "int8"  # of a quantised network
TF32 = "tf32"  # of fp32 networks on GPUs: matrix products, too, compute in it
CHOICES = {"mode": MODES, "dtype": ("fp32", *AUTOCAST, TF32, INT8),
           "layout": ("contiguous", "channels_last"), "runtime": RUNTIMES}
CONDITION = ("runtime", "compiled", "dtype", "threads", "instances")  # whatever the network


@dataclass(frozen=True)
class RunConfig:
    """A network, its batch and mode, and all that decides how it runs.

    Args:
        network: a workload id, torchvision's name, timm:NAME, hf:PATH or module:Class.
        batch_size: of all GPUs together; 0: the network's usual one.
        input_shape: of one sample; empty: the network's usual one.
        dtype: fp32 (torch's default: TF32 in convolutions of GPUs alone), tf32, bf16, fp16, or int8
            of a quantised network.
        autocast: bf16 and fp16 are those of torch.autocast; else the network is so as a whole, on GPUs.
        layout: of images.
        runtime: what runs it (``lib.work.runtimes``); ``compiled``: by torch.compile.
        threads: of each process on a CPU; 0: all cores.
        instances: processes side by side on a CPU, on cores of their own.
        gpus: equal GPUs of one machine that share the batch (DistributedDataParallel).
    """

    network: str = ""
    batch_size: int = 0
    input_shape: str = ""
    mode: str = "infer"
    dtype: str = "fp32"
    layout: str = "contiguous"
    compiled: bool = False
    gpus: int = 1
    runtime: str = TORCH
    threads: int = 0
    instances: int = 1
    autocast: bool = True

    def __post_init__(self):
        """Replace names that people spell otherwise: float16 becomes fp16, ResNet-50 resnet50."""
        spelled = {name: known(getattr(self, name), names) for name, names in CHOICES.items()}
        vars(self).update(spelled, network=self.network and networks.spelled(self.network))

    def check(self) -> None:
        """Raise InputError for a value that is none of its CHOICES."""
        for name, names in CHOICES.items():
            entry(tuple(names), getattr(self, name), "element type" if name == "dtype" else name)

    def loaded(self, batch_size: int = 0) -> networks.Network:
        """Return the network with the batch of a GPU; InputError where there is none."""
        return networks.network(self.network, batch_size or self.batch_per_gpu, self.input_shape)

    @property
    def batch_per_gpu(self) -> int:
        """Return the batch size of each GPU; 0: the network's usual one."""
        return self.batch_size // self.gpus

    @property
    def condition(self) -> "RunConfig":
        """Return how any network runs so on a CPU: CONDITION alone, the rest as by default."""
        return RunConfig(**{name: getattr(self, name) for name in CONDITION})

    @property
    def is_plain(self) -> bool:
        """Return whether torch runs it eagerly, on all threads, its images in the default layout."""
        return not self.compiled and self.layout == "contiguous" and not self.is_for_cpu

    @property
    def is_for_cpu(self) -> bool:
        """Return whether only this machine's CPU can: by a runtime, int8, threads or instances."""
        return (self.runtime, self.threads, self.instances) != (TORCH, 0, 1) or self.dtype == INT8

    @property
    def label(self) -> str:
        """Return it in a line: of one without a network the condition alone."""
        words = []
        if self.network:
            batch = f"b{self.batch_size}" if self.batch_size else ""
            words = [self.network, self.input_shape, self.mode, batch]
        words += ["torch.compile" if self.compiled else self.runtime, self.dtype]
        if self.layout != "contiguous":
            words.append(self.layout)
        if self.instances > 1:
            words += [f"{self.instances} processes of", "" if self.threads else "all threads"]
        elif self.threads:
            words.append("on")
        if self.threads:
            words.append("1 thread" if self.threads == 1 else f"{self.threads} threads")
        if self.gpus > 1:
            words.append(f"{self.gpus} GPUs")
        return " ".join(filter(None, words))

    @property
    def columns(self) -> dict[str, Any]:
        """Give it as columns of tables, such as ``networks`` (of one device)."""
        row = asdict(self)
        row["channels_last"] = row.pop("layout") == "channels_last"
        del row["autocast"]
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "RunConfig":
        """Return what a row of a table says (``columns``); what it lacks is as by default."""
        values = {one.name: one.type(row[one.name]) for one in fields(cls) if one.name in row}
        return cls(**{"layout": layout_of(row), **values})


def layout_of(row: Mapping[str, Any]) -> str:
    """Return the layout that a row's column ``channels_last`` says."""
    return "channels_last" if row.get("channels_last") else "contiguous"


@dataclass(frozen=True)
class DeviceCondition:
    """The state of a device while a network runs.

    ``memory``: the heap of a CPU's process, ``default`` or ``kept`` (it retains what is freed).
    ``power_limit_w``: of a GPU; 0: the most that the board may draw. ``clock_mhz``: at which a GPU is locked; 0: its boost
    clock, or what the power limit leaves of it. ``host_us``: microseconds that the host takes to launch an operator on a
    GPU; 0: a usual host's. Raises InputError for a power limit and a clock together.
    """

    memory: str = "default"
    power_limit_w: float = 0.0
    host_us: float = 0.0
    clock_mhz: float = 0.0

    def __post_init__(self):
        """Refuse a power limit beside a clock: which of both holds a board back was not learned."""
        if self.power_limit_w and self.clock_mhz:
            raise InputError(f"a power limit ({self.power_limit_w:g} W) and a clock ({self.clock_mhz:g} MHz) are not predicted "
                             "together; give one of them")


USUAL_CONDITION = DeviceCondition()
