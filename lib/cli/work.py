"""The verb of what is run: ``data``, which fetches, checks and describes."""

import argparse
import sys

from lib import paths
from lib.errors import InputError


def _data(options: argparse.Namespace) -> int:
    from lib.config import definitions
    from lib.work import medmnist_files

    if options.action == "dictionary":
        from lib import tables

        print(tables.dictionary())
        return 0
    wanted = options.names or sorted({f"{w.dataset}" for w in definitions.workloads().values() if w.dataset != "imagefolder"})
    sizes = {name: [options.size] if options.size else _sizes(name) for name in wanted}
    pairs = [(name, size) for name in wanted for size in sizes[name]]
    for name, size in pairs:  # a wrong name fails before anything is fetched
        medmnist_files.published(name, size)
    failed = False
    for name, size in pairs:
        path = paths.MEDMNIST / medmnist_files.file_name(name, size)
        try:
            if options.action == "fetch":
                medmnist_files.fetch(name, size)
            counts = medmnist_files.check_file(path, name, size)
            official = "official" if medmnist_files.is_official(path, name, size) else "NOT the official file (MD5 differs)"
            print(f"{path}: {counts}, {official}")
        except InputError as error:
            failed = True
            print(f"error: {error}", file=sys.stderr)
    return int(failed)


def _sizes(dataset: str) -> list[int]:
    """Return the native sizes that the workloads read of a dataset; 28 for one that none of them reads."""
    from lib.config import definitions
    from lib.work import medmnist_files

    used = {medmnist_files.native_size(w.dataset, w.size, "native") for w in definitions.workloads().values()
            if w.dataset == dataset}
    return sorted(used or {28})


def add(verbs) -> None:
    """Add the verb of datasets and tables."""
    verb = verbs.add_parser("data", help="fetch or check MedMNIST files, or print the dictionary of the tables")
    verb.add_argument("action", choices=("fetch", "check", "dictionary"))
    verb.add_argument("names", nargs="*", help="datasets (default: those of the workloads)")
    verb.add_argument("--size", type=int, choices=(28, 64, 128, 224), help="native size (default: what the workloads read)")
    verb.set_defaults(call=_data)
