"""What others measured on their machines, read as labelled questions: networks and operators, ms.

A label's ``model`` is a network as ``advise`` takes it, or an operator as ``advise-op`` does: a
family and NAME=VALUE. ``source_of`` tells sources apart by the names of their files; a CSV with the
columns ``model`` and ``measured_ms`` is the user's own.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, store
from lib.config.base import mapping
from lib.errors import InputError, choices
from lib.measure.gpus.card import number_of
from lib.measure.statistics import is_usable
from lib.predict.published import SOURCES, kernels
from lib.predict.published import timm as timm_results
from lib.predict.published.reading import read_csv
from lib.tables import PARAMETERS
from lib.work.runtimes import TORCH

STEP = ("loader_wait", "h2d", "optimizer")  # parts of a training step that a time may include
INCLUDED = (*STEP, "zeroing")  # zeroing: of gradients beforehand, as torch did until 2.0
DEFAULT = "torch's default"  # element type of fp32 as torch has it: TF32 from Ampere on
USUAL = {"batch_size": "", "device": "", "mode": "infer", "dtype": "fp32", "input": "",
         "layout": "contiguous", "compile": "false", "runtime": TORCH, "threads": "",
         "instances": "1", "gpus": "1", "clock_mhz": "", "includes": "", "autocast": "true"}
COLUMNS = ("model", *USUAL, "measured_ms")


@dataclass(frozen=True)
class Source:
    """Who measured: a name, the licence, a pattern of the paths of its files, and what reads one.

    ``by_folder``: each folder is of another host, whose name belongs to that of the source.
    """

    name: str
    licence: str
    files: str
    read: Callable[[Path], pd.DataFrame]
    by_folder: bool = False

    def of(self, path: Path) -> str:
        """Return the name of the source of a file."""
        return f"{self.name}, {path.parent.name}" if self.by_folder else self.name


def _labels(**values: Any) -> pd.DataFrame:
    return pd.DataFrame({**USUAL, **values}).reindex(columns=COLUMNS)


_DEEPBENCH = {  # its names of devices; V100: of a DGX-1, P100: on PCIe
    "NVIDIA V100": "v100-sxm2-16gb", "NVIDIA Tesla P100": "p100-pcie-16gb",
    "NVIDIA GTX 1080 Ti": "gtx-1080-ti", "Nvidia TitanX": "gtx-titan-x",
    "Nvidia TitanX Pascal": "titan-x-pascal", "AMD MI25": "mi25",
    "AMD Vega Frontier Edition 16GB": "vega-fe"}
_CONVOLUTION = {
    "batch": "n", "in_channels": "c", "out_channels": "k", "height": "h", "width": "w",
    "kernel_h": "r", "kernel_w": "s", "padding_h": "pad_h", "padding_w": "pad_w",
    "stride_h": "vertical stride", "stride_w": "horizontal stride"}
_CARDS, _REDUCE_MS = "# chips / accelerator cards", "mean all reduce time (msec)"
_MOST_CARDS = 8  # of an all-reduce in one machine
_HEADERS = ({"m", "n", "k"}, {"w", "h", "c"}, {_CARDS})


def deepbench(path: Path) -> pd.DataFrame:
    """Read an .xlsx of DeepBench: GEMMs, convolutions and all-reduces of its FP32 sheets.

    The gradient of the weights is a backward pass (as of a first layer), both gradients another.
    Products are column-major: M and N change places. Raises InputError without such a sheet.
    """
    sheets = csv_files.workbook(path)
    stated = sheets.get("Specs", pd.DataFrame(columns=[0, 1])).iloc[:, :2].astype(str)
    specs = dict(zip(*(stated[column].str.strip() for column in stated), strict=True))
    device = specs.get("GPU Model") or specs.get("CPU Model") or path.stem
    rows = [row for name, sheet in sheets.items() if "FP32" in name.upper()
            for row in _blocks(sheet.to_numpy(object))]
    if not rows:
        raise InputError(f"{path} has no sheet FP32 with DeepBench's GEMMs or convolutions; it "
                         f"has: {choices(sheets)}")
    table = pd.DataFrame(rows, columns=["model", "mode", "measured_ms", "gpus"])
    return _labels(**table, device=_DEEPBENCH.get(device, device))


def _blocks(cells: np.ndarray) -> Iterator[tuple[str, str, float, str]]:
    """Yield operator, mode, ms and GPUs of each row below a header of ``_HEADERS``."""
    places = {}
    for row in cells:
        texts = {cell.strip().lower().partition(" (f")[0]: place
                 for place, cell in enumerate(row) if isinstance(cell, str)}
        if any(names <= texts.keys() for names in _HEADERS):
            places = texts
        elif isinstance(row[0], str):
            places = {}  # a block of another kind begins
        elif places and isinstance(row[2], int | float) and row[2] > 0:
            yield from _operators({name: row[place] for name, place in places.items()})


def _operators(cell: store.Facts) -> Iterator[tuple[str, str, float, str]]:
    """Yield operator, mode, ms and GPUs of one row."""
    if "m" in cell:
        layout = "".join("t" if cell[f"{side} transpose"] == "T" else "n" for side in "ba")
        sizes = f"gemm_m={cell['n']} gemm_k={cell['k']} gemm_n={cell['m']}"
        yield f"matmul {sizes} layout={layout}", "infer", cell["time (msec)"], "1"
    elif _CARDS in cell:
        if cell[_CARDS] <= _MOST_CARDS and cell[_REDUCE_MS] > 0:
            operator = f"all_reduce mb={cell['size # floats'] * 4 / 1e6:g}"
            yield operator, "infer", cell[_REDUCE_MS], f"{cell[_CARDS]:.0f}"
    else:
        operator = "conv2d " + " ".join(f"{name}={cell[old]}" for name, old in _CONVOLUTION.items())
        yield operator, "infer", cell["forward (msec)"], "1"
        inputs_ms, weights_ms = cell.get("wrt inputs (msec)"), cell.get("wrt parameters (msec)")
        if isinstance(weights_ms, int | float):
            yield f"{operator} input_grad=0", "train", float(weights_ms), "1"
            if isinstance(inputs_ms, int | float):
                yield f"{operator} input_grad=1", "train", float(inputs_ms + weights_ms), "1"


_CARD = re.compile(
    r"(?P<card>.+?)(_(?P<gpus>\d+)_gpus_)?_(?P<dtype>single|float|half|double)_model_"
    r"(?P<mode>inference|train(?:ing)?)_benchmark(\(\d\))?\.csv")
_CARD_DTYPES = {"single": DEFAULT, "float": DEFAULT, "half": "fp16", "double": "fp64"}
_CARD_BATCH = 12  # images per GPU


def torchvision_cards(path: Path) -> pd.DataFrame:
    """Read ``<card>[_<n>_gpus_]_<dtype>_model_<mode>_benchmark.csv``: a column per network, ms.

    12 images of 224 x 224 per GPU. The time includes the copy of the batch; that of training is
    without an optimizer, but with gradients that are zeroed. Half is fp16 without autocast.
    """
    named = _CARD.fullmatch(path.name)
    if not named:
        raise InputError(f"{path} is not named <card>_<dtype>_model_<mode>_benchmark.csv")
    table = csv_files.frame(path).apply(pd.to_numeric, errors="coerce")
    gpus, is_inference = int(named["gpus"] or 1), named["mode"] == "inference"
    return _labels(model=list(table), measured_ms=table.median().to_numpy(), gpus=str(gpus),
                   device=named["card"].removesuffix("_"), dtype=_CARD_DTYPES[named["dtype"]],
                   batch_size=_CARD_BATCH * gpus, mode="infer" if is_inference else "train",
                   includes="h2d" if is_inference else "h2d zeroing", autocast="false")


_TIMM_DTYPES = {"fp32": "fp32", "amp_fp16": "fp16", "amp_bf16": "bf16", "bf16": "bf16"}
_TIMM_LAYOUTS = {"nchw": "contiguous", "nhwc": "channels_last"}


def timm(path: Path) -> pd.DataFrame:
    """Read ``benchmark-*.csv`` of timm; a training step is forward, backward and optimizer."""
    table = timm_results.read(path)
    size = table["image_size"].astype(str)
    return _labels(model="timm:" + table["network"], input="3x" + size + "x" + size,
                   measured_ms=table["latency_ms"], dtype=table["precision"].map(_TIMM_DTYPES),
                   layout=table["layout"].map(_TIMM_LAYOUTS), compile=table["compiled"].astype(str),
                   includes="optimizer", **table[["device", "mode", "batch_size"]])


def neusight(path: Path) -> pd.DataFrame:
    """Read ``<operator>/<GPU>.csv`` of NeuSight as operators, see ``kernels.neusight``."""
    op = next(part for part in reversed(path.resolve().parts[:-1]) if part in kernels.NEUSIGHT)
    table = kernels.neusight_table(path, op, path.stem)
    shown = table[[name for name in PARAMETERS if name in table]].astype(object)
    texts = []
    for family, row in zip(table["op"], shown.to_dict("records"), strict=True):
        given = [f"{name}={value}" for name, value in row.items()
                 if not pd.isna(value) and value != ""]
        texts.append(" ".join([family, *given]))
    return _labels(model=texts, device=path.stem, measured_ms=table["latency_ms"])


_RESNET50 = re.compile(r"ResNet-50 \(batch size (\d+)\)")
_CLOUD = {"v100": "v100-sxm2-16gb", "p100": "p100-pcie-16gb"}  # as which clouds rent them


def gavel(path: Path) -> pd.DataFrame:
    """Read ResNet-50's training steps, alone on a device, of ``simulation_throughputs.json``."""
    rows = []
    for device, jobs in mapping(store.read_json(path), path).items():
        for text, rates in mapping(jobs, path).items():
            job = _RESNET50.fullmatch(text.strip("()'").removesuffix("', 1"))
            if job and isinstance(rate := rates.get("null"), int | float) and rate > 0:
                rows.append((_CLOUD.get(device, device), job[1], 1000 / rate))
    table = pd.DataFrame(rows, columns=["device", "batch_size", "measured_ms"])
    return _labels(model="resnet50", mode="train", includes=" ".join(STEP), **table)


ZEUS = "Apache-2.0, ml-energy/zeus"
_ZEUS = {  # networks that advise knows, their input and samples of an epoch; bert: a folder with
    # its configuration; not ShuffleNetV2: on CIFAR-100 a larger network than torchvision's runs
    ("resnet50", "imagenet"): ("resnet50", "", 1_281_167),
    ("bert_base_uncased", "squad"): ("hf:bert", "384:int64", 88_524)}


def power_limits(path: Path) -> pd.DataFrame:
    """Read Zeus's ``summary_power_<device>.csv``: s per epoch and mean W under each power limit.

    ``model``, ``input`` and ``step_ms`` of networks that ``advise`` knows, else empty.
    """
    names = {"power_limit": "limit_w", "time_per_epoch": "time_s", "average_power": "power_w"}
    table = read_csv(path, ["batch_size"], [*names], ["dataset", "network", "optimizer"])
    table = table.rename(columns=names)
    pairs = zip(table["network"], table["dataset"], strict=True)
    known = [_ZEUS.get(pair, ("", "", np.nan)) for pair in pairs]
    known = pd.DataFrame(known, table.index, ["model", "input", "samples"])
    device = path.stem.rpartition("_")[2]
    return table.assign(device="v100-pcie-32gb" if device == "v100" else device,
                        model=known["model"], input=known["input"],
                        step_ms=table["time_s"] * 1e3 / (known["samples"] / table["batch_size"]))


def zeus(path: Path) -> pd.DataFrame:
    """Read ResNet-50's epochs on ImageNet at the highest limit of ``power_limits``, ms per step."""
    table = power_limits(path)
    table = table[(table["network"] == "resnet50") & (table["limit_w"] == table["limit_w"].max())]
    return _labels(model="resnet50", mode="train", dtype=DEFAULT, includes="h2d optimizer",
                   measured_ms=table["step_ms"], **table[["device", "batch_size"]])


def measured_networks(path: Path) -> pd.DataFrame:
    """Read a table ``networks`` of this project, measured on GPUs, without unusable rows.

    A pass includes neither copies nor an optimizer. Raises InputError for a table without GPUs.
    """
    table = store.read(path, "networks")
    table = table[is_usable(table) & table["device"].str.startswith("cuda")]
    if table.empty:
        raise InputError(f"{path} has no usable network of a GPU; those of CPUs are scored by "
                         "models --errors")
    gpus = store.read_json(path.with_name("networks.meta.json"))["hardware"]["gpus"]
    is_tf32 = table["tf32"].astype(bool) & (table["dtype"] == "fp32")
    return _labels(
        model=table["network"], input=table["input_shape"], measured_ms=table["latency_ms"],
        dtype=table["dtype"].mask(is_tf32, "tf32"),
        device=table["device"].map(lambda device: gpus[number_of(device)]["name"]),
        layout=table["channels_last"].map({True: "channels_last", False: "contiguous"}),
        compile=table["compiled"].astype(bool).astype(str).str.lower(),
        **table[["mode", "batch_size"]])


def plain(path: Path) -> pd.DataFrame:
    """Read a CSV with the columns ``model`` and ``measured_ms``, and any others of COLUMNS.

    Cells may be empty. Without ``includes`` a training step has all of its parts.
    """
    table = csv_files.frame(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    if unknown := sorted(set(table) - set(COLUMNS)):
        raise InputError(f"{path} has unknown columns {choices(unknown)}; it takes: "
                         f"{choices(COLUMNS)}")
    for name in USUAL.keys() & set(table):
        table[name] = table[name].mask(table[name] == "", USUAL[name])
    table["measured_ms"] = pd.to_numeric(table["measured_ms"], errors="coerce")
    result = _labels(**table)
    result["runtime"] = result["runtime"].replace("pytorch", TORCH)  # as in earlier releases
    if "includes" not in table:
        result["includes"] = result["mode"].map({"train": " ".join(STEP)}).fillna("")
    return result


_MEASURED = r"/networks/([^/]+/)?networks\.parquet"
_OPERATORS = "|".join(kernels.NEUSIGHT)
READERS = (
    Source("DeepBench", "Apache-2.0, baidu-research/DeepBench", r".*\.xlsx", deepbench),
    Source("torchvision cards", "MIT, ryujaehun/pytorch-gpu-benchmark",
           r".*_benchmark(\(\d\))?\.csv", torchvision_cards, True),
    Source("timm", SOURCES["timm"][0], r".*/benchmark-[^/]*\.csv", timm),
    Source("NeuSight", SOURCES["neusight"][0], rf".*/({_OPERATORS})/(p2\.1\.0/)?[^/]+\.csv",
           neusight),
    Source("Gavel", "MIT, stanford-futuredata/gavel", r".*/simulation_throughputs\.json", gavel),
    Source("Zeus", ZEUS, r".*/summary_power_[^/]+\.csv", zeus),
    Source("this project", "MIT, this project", rf".*/data/reference/[^/]+{_MEASURED}",
           measured_networks),
    Source("measured here", "not stated", rf".*{_MEASURED}", measured_networks))
_OWN = Source("plain CSV", "not stated", "", plain)


def source_of(path: Path) -> Source | None:
    """Return who reads a file, None where nobody does."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            if {"model", "measured_ms"} <= {name.strip() for name in file.readline().split(",")}:
                return _OWN
    place = path.resolve().as_posix()
    return next((source for source in READERS if re.fullmatch(source.files, place)), None)
