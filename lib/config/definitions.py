"""Definitions that people edit beside the workloads: vendors' devices, the run matrix, counters, scheduling scenarios."""

from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lib import paths
from lib.config.base import NUMBER, Count, Positive, Strict, build, load, load_yaml, mapping, number, some, text, whole
from lib.errors import InputError, choices, entry
from lib.files import until_changed
from lib.names import words

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Rate = Annotated[float, NUMBER, Field(gt=0, lt=1e8)]


class VendorDevice(Strict):
    """One entry of ``params/devices.yaml``: what the vendor states of a device, in GFLOP/s (dense), GB/s and 10^6 bytes.

    ``multiprocessors``, ``cache_mb`` (the last cache) and ``power_w`` (the most that the board may draw) are 0 where they
    are not stated, as are ``least_power_w``, the lowest power limit that it takes, and ``boost_mhz``, the clock of the peak
    rates; the price is what its user pays.
    ``link_gbps`` is what the link between two boards carries each way: PCIe 3.0 x16 where it is not stated.
    ``architecture`` is the vendor's generation: chips of one are siblings, whose models stand in for one another.
    ``aliases`` are other names that people type for this device and for no other one.
    """

    id: text(r"^[a-z0-9-]+$")
    name: str
    peak_gflops: dict[Dtype, Rate]
    peak_gbps: Rate
    memory_mb: Rate
    multiprocessors: Count = 0
    cache_mb: number(0) = 0.0
    architecture: text(r"^[a-z0-9-]*$") = ""
    aliases: tuple[str, ...] = ()
    power_w: number(0) = 0.0
    least_power_w: number(0) = 0.0
    boost_mhz: number(0) = 0.0
    memory: Literal["gddr", "hbm"] = "gddr"
    link_gbps: Rate = 16.0
    price_per_hour: number(above=0) | None = None
    source: Annotated[str, Field(min_length=5)]


class RunGrid(Strict):
    """The cells of one backend in ``params/matrix.yaml``, and its own options of a run."""

    models: some(str)
    batch_sizes: some(Positive)
    precisions: some(Literal["fp32", "bf16", "fp16", "amp"])
    optimizers: some(Literal["adam", "sgd"]) = ("adam",)
    options: dict[str, Any] = {}


class Matrix(Strict):
    """``params/matrix.yaml``: on what the models are trained, how often, with which options, and the grid of each backend."""

    environment: text(r"^[A-Za-z0-9._-]*$") = ""
    dataset: str = "pathmnist"
    folder: str = ""
    notes: Annotated[str, Field(max_length=10_000)] = ""
    size: whole(8, 1024) = 224
    repeats: Positive = 3
    options: dict[str, Any] = {}
    grids: dict[Literal["cpu", "cuda", "mps"], RunGrid]


class Metric(Strict):
    """One counter of ``params/nsight_metrics.yaml``: what it stands for and how much one count weighs."""

    name: text(r"^[A-Za-z0-9_.]+$")
    role: Literal["flops", "bytes", "time"]
    weight: number(above=0) = 1.0
    dtype: Dtype | None = None
    optional: bool = False


class JobClass(Strict):
    """One entry of ``kinds`` in ``params/scenarios.yaml``: a network as ``advise`` names it; batch size 0 is its own.

    A scenario that names no kinds takes those in fp32.
    """

    id: str
    model: str
    mode: Literal["train", "infer"]
    batch_size: Count = 0
    dtype: Literal["fp32", "fp16"] = "fp32"


class Group(Strict):
    """Equal devices of a scenario. Watts and price are assumptions."""

    count: whole(1, 100_000)
    idle_w: number(0) | None = None
    busy_w: number(0) | None = None
    price_per_hour: number(0) | None = None


class Scenario(Strict):
    """One entry of ``scenarios`` in ``params/scenarios.yaml``: a fleet, and how long jobs take on their fastest device.

    ``kinds`` names those of its jobs; empty: all in fp32.
    """

    id: text(r"^[a-z0-9_]+$")
    note: str
    kinds: tuple[str, ...] = ()
    devices: Annotated[dict[str, Group], Field(min_length=1)]
    shortest_s: number(above=0)
    longest_s: number(above=0)


def table(path: Path, key: str, model: type[Strict], named: str = "id", beside: str = "") -> dict[str, Any]:
    """Read a mapping ``key`` of names to definitions, alone in its file but for ``beside``; ``named`` is the field of the name.

    Raises InputError, which names the file and the wrong entry.
    """
    content = mapping(load_yaml(path), path)
    if set(content) != {key, beside} - {""} or not content[key]:
        raise InputError(f"{path}: expected a mapping '{key}:' of name to definition"
                         f"{f' beside {beside!r}' if beside else ''} and nothing else; it has: {choices(content)}")
    entries = {}
    for name, value in mapping(content[key], f"{path}: {key}").items():
        content = mapping(value, f"{path}: {name} must be a mapping: {name}")
        if named and named in content:
            raise InputError(f"{path}: {name}: its {named} is its name, and not stated again")
        entries[name] = build(model, {named: name, **content} if named else content, f"{path}: {name}")
    return entries


def load_devices(path: Path = paths.PARAMS / "devices.yaml") -> dict[str, VendorDevice]:
    """Read the vendors' devices, id to definition, once as their file stands; InputError names it and the wrong entry."""
    return dict(_devices(path) if path.is_file() else table(path, "devices", VendorDevice))


_devices = until_changed(partial(table, key="devices", model=VendorDevice))


def vendor_device(device_id: str) -> VendorDevice:
    """Return one device as its vendor states it, by any name of it; InputError lists all ids and the nearest."""
    return entry(load_devices(), find_device(device_id) or device_id, "device", "in params/devices.yaml")


def find_device(name: str) -> str:
    """Return the id of the device whose id, name or alias has all words of a name but the maker; empty for none or several."""
    found = {id_ for id_, device in load_devices().items()
             for text in (id_, device.name, *device.aliases) if sorted(words(text)) == sorted(words(name))}
    return found.pop() if len(found) == 1 else ""


def load_scenarios(path: Path = paths.PARAMS / "scenarios.yaml") -> tuple[dict[str, JobClass], dict[str, Scenario]]:
    """Read the kinds of jobs and the scenarios; InputError names the file and the wrong entry."""
    kinds, scenarios = table(path, "kinds", JobClass, beside="scenarios"), table(path, "scenarios", Scenario, beside="kinds")
    for scenario in scenarios.values():
        if scenario.shortest_s > scenario.longest_s:
            raise InputError(f"{path}: {scenario.id}: shortest_s {scenario.shortest_s:g} is above longest_s "
                             f"{scenario.longest_s:g}")
        if set(scenario.kinds) - set(kinds):
            raise InputError(f"{path}: {scenario.id}: no kinds {choices(sorted(set(scenario.kinds) - set(kinds)))}; there are: "
                             f"{choices(kinds)}")
    return kinds, scenarios


def scenario(name: str) -> Scenario:
    """Return one scenario; InputError lists the known ones."""
    return entry(load_scenarios()[1], name, "scenario", "in params/scenarios.yaml")


def load_metrics(path: Path = paths.PARAMS / "nsight_metrics.yaml") -> dict[str, Metric]:
    """Read the counters, name to definition.

    Raises InputError for a wrong entry, FLOPs without a dtype, or a role that no counter has.
    """
    metrics = table(path, "metrics", Metric, "name")
    for metric in metrics.values():
        if (metric.role == "flops") != (metric.dtype is not None):
            raise InputError(f"{path}: {metric.name}: a dtype belongs to counters of FLOPs, and each of them has one")
    absent = {"flops", "bytes", "time"} - {metric.role for metric in metrics.values() if not metric.optional}
    if absent:
        raise InputError(f"{path}: no counter, other than optional ones, has the role {choices(sorted(absent))}")
    return metrics


def load_matrix(path: Path = paths.PARAMS / "matrix.yaml") -> Matrix:
    """Read the run matrix; every set of options is checked as parameters of a profiled run."""
    from lib.config.notebooks import ProfileParams  # reads the notebooks, which few verbs need

    matrix = load(Matrix, path)
    for backend, grid in matrix.grids.items():
        build(ProfileParams, {**matrix.options, **grid.options}, f"{path}: options of {backend}")
    return matrix


class Workload(Strict):
    """One line of ``params/workloads.yaml``: what is trained on what."""

    id: text(r"^[A-Za-z0-9][A-Za-z0-9.-]*$")
    dataset: str
    size: whole(8, 2048)
    model: str
    batch_size: Positive
    purpose: str = ""
    folder: str = ""


class NetworkSet(Strict):
    """One entry of ``sets`` in ``params/networks.yaml``: every combination of its lists is a case.

    ``threads`` 0 are all; ``every`` 3: each network has a third of its combinations, another one than the network before it.
    """

    networks: some(str)
    modes: some(Literal["infer", "train"])
    batch_sizes: some(Positive)
    dtypes: tuple[Literal["fp32", "bf16", "fp16", "int8"], ...] = ("fp32",)
    layouts: tuple[Literal["contiguous", "channels_last"], ...] = ("contiguous",)
    compiled: tuple[bool, ...] = (False,)
    runtimes: tuple[str, ...] = ("torch",)
    threads: tuple[whole(0, 4096), ...] = (0,)
    instances: tuple[Positive, ...] = (1,)
    every: Positive = 1
    memory: tuple[Literal["default", "kept"], ...] = ("default", "kept")


class Campaign(Strict):
    """``params/networks.yaml``: the networks that are measured end to end, rounds, and seconds a case in each of them.

    ``energy_s``: seconds of repeated passes from which energy is read; 0 measures none.
    """

    rounds: whole(1, 1000)
    case_s: number(above=0, most=1e5)
    energy_s: number(0, 1e5) = 2.0
    sets: some(NetworkSet)


class Section(Strict):
    """One notebook of ``params/report.yaml``: what it runs over and its parameter sets."""

    notebook: str
    over: tuple[Literal["workloads", "devices"], ...] = ()
    quick: dict[str, Any] = {}
    full: dict[str, Any] = {}


class ReportPlan(Strict):
    """``params/report.yaml``: the order of the report and how each notebook is run for it."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]


def load_campaign(path: Path = paths.PARAMS / "networks.yaml") -> Campaign:
    """Read which networks are measured end to end; InputError names the file and the wrong entry."""
    return load(Campaign, path)


def load_workloads(path: Path = paths.PARAMS / "workloads.yaml") -> dict[str, Workload]:
    """Read the workload definitions, id to Workload; InputError names the file and the wrong entry."""
    return table(path, "workloads", Workload)


@cache
def workloads() -> dict[str, Workload]:
    """Return the project's own workload definitions, read once."""
    return load_workloads()


def workload(workload_id: str) -> Workload:
    """Return one workload; InputError lists the known ids."""
    return entry(workloads(), workload_id, "workload", advice=" (add yours to params/workloads.yaml)")


def load_report_plan(path: Path = paths.PARAMS / "report.yaml") -> ReportPlan:
    """Read the plan of the report; each parameter set is checked against its notebook's class."""
    from lib.config.notebooks import notebook_model

    plan = load(ReportPlan, path)
    for section in plan.sections:
        for name in ("quick", "full"):
            build(notebook_model(section.notebook), getattr(section, name), f"{path}: {section.notebook}.{name}")
    return plan
