"""Measurements that others published: tables to train on (``import``), labels to score with.

Readers of tables: ``kernels`` (NeuSight, pytorch-scheduler), ``aiconfigurator``, ``timm``;
``energaizer`` reads joules at locked clocks. ``labels`` reads these and other sources as questions with their measured times.
"""

from pathlib import Path

from lib import files, paths, store
from lib.errors import InputError
from lib.predict.published import aiconfigurator, kernels, timm

SOURCES = {  # kind: licence and source, then the reader of each table
    "neusight": ("MIT, sitar-lab/NeuSight", {"sweep": kernels.neusight}),
    "pytorch-scheduler": ("MIT, hileamlakB/Pytorch-scheduler",
                          {"sweep": kernels.pytorch_scheduler}),
    "aiconfigurator": ("Apache-2.0, ai-dynamo/aiconfigurator",
                       {"sweep": aiconfigurator.gemms}),
    "timm": ("Apache-2.0, huggingface/pytorch-image-models", {"whole_networks": timm.by_device})}
_FOLDERS = {"sweep": "sweeps", "whole_networks": "whole_networks"}


def import_tables(kind: str, path: Path) -> dict[Path, int]:
    """Write data/imported/<device>/<folder>/<kind>/<table>.parquet; return the rows of each file.

    A second import replaces the first. Raises InputError for what is no data of this kind.
    """
    if not path.exists():
        raise InputError(f"{path} is missing")
    licence, readers = SOURCES[kind]
    name = files.safe_name(path.stem) if kind == "pytorch-scheduler" else kind
    parts = [(table, *part) for table, read in readers.items() for part in read(path).items()]
    written = {}
    for table, device, rows in parts:
        target = paths.IMPORTED / device / _FOLDERS[table] / name / f"{table}.parquet"
        store.write(rows, target, table, derived=True)
        store.write_meta(target, table, source=kind, licence=licence, origin=path.name,
                         device=device, rows=len(rows))
        written[target] = len(rows)
    return written
