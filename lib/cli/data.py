"""The verbs ``data`` (data sets, tables, results, copies) and ``import``. Imports nothing heavy."""

import argparse

from lib import paths
from lib.cli.options import a_path, add_verb, flag, folder_name, new_file, note, option
from lib.errors import InputError, choices

KINDS = ("neusight", "pytorch-scheduler", "aiconfigurator", "timm")


def _medmnist(options: argparse.Namespace) -> bool:
    from lib.config import definitions
    from lib.work import medmnist_files

    sizes = {}  # the native sizes that the workloads read
    for workload in definitions.workloads().values():
        if workload.dataset != "imagefolder":
            size = medmnist_files.native_size(workload.dataset, workload.size, "native")
            sizes.setdefault(workload.dataset, set()).add(size)
    pairs = [(name, size) for name in options.names or sorted(sizes)
             for size in ([options.size] if options.size else sorted(sizes.get(name, {28})))]
    for name, size in pairs:  # a wrong name fails before anything is fetched
        medmnist_files.published(name, size)
    failed = False
    for name, size in pairs:
        try:
            if options.action == "fetch":
                path = medmnist_files.fetch(name, size)
            else:
                path = medmnist_files.located(name, size)
                medmnist_files.check_md5(path, name, size)
            print(f"{path}: {choices(medmnist_files.facts(name).samples)} samples, official")
        except InputError as error:
            failed = True
            note(f"error: {error}")
    return failed


def _dictionary(options: argparse.Namespace) -> None:
    from lib import files, tables

    if not options.write:
        print(tables.dictionary())
        return
    page = paths.ROOT / "data" / "README.md"
    print(files.replace(page, tables.with_dictionary(page.read_text()).encode()))


def _push(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    count = len(data_copy.push(options.folder, options.url))
    print(f"{count} files pushed; data pull checks each by SHA-256")


def _pull(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    count = len(data_copy.pull(options.url, options.folder))
    print(f"{count} files are there, each checked by SHA-256")


def _pack(options: argparse.Namespace) -> None:
    from lib.measure import packing

    target, count = packing.pack(options.file)
    print(f"{target}: {count} files")


def _unpack(options: argparse.Namespace) -> None:
    from lib.measure import packing

    folder = packing.unpack(options.file, options.name)
    print(f"{folder}: -p reference {folder.name}, models --train {folder.name}")


def _import(options: argparse.Namespace) -> None:
    from lib.predict import published

    for path, rows in published.import_tables(options.kind, options.path).items():
        print(f"{path}: {rows} rows")


def add(verbs) -> None:
    """Add the verbs."""
    verb = verbs.add_parser("data", description="MedMNIST files, the tables' dictionary, results "
                            "as a zip, copies of a folder")
    actions = verb.add_subparsers(dest="action", required=True, metavar="action")
    for name, text in (("fetch", "download MedMNIST files"), ("check", "check MedMNIST files")):
        verb = add_verb(actions, name, text, _medmnist)
        option(verb, "names", "datasets (default: those of the workloads)", nargs="*")
        option(verb, "--size", "native size (default: those of the workloads)", int,
               choices=(28, 64, 128, 224))
    verb = add_verb(actions, "dictionary", "print the dictionary of the tables", _dictionary)
    flag(verb, "--write", "write it into data/README.md instead")
    verb = add_verb(actions, "pack", "pack the results of this machine into a zip", _pack)
    option(verb, "file", "the zip (default: <machine>.zip)", new_file, nargs="?")
    verb = add_verb(actions, "unpack", "unpack results to data/imported/<machine>", _unpack)
    option(verb, "file", "a zip of data pack", a_path)
    option(verb, "--name", "name of the machine (default: as packed)", folder_name)
    verb = add_verb(actions, "push", "copy a folder to a URL, without hidden files", _push)
    option(verb, "folder", "the folder here", a_path)
    option(verb, "url", "a folder, or an address of fsspec, such as s3://bucket/lab")
    verb = add_verb(actions, "pull", "copy a pushed folder here; differing files stay", _pull)
    option(verb, "url", "as in push")
    option(verb, "folder", "the folder here", a_path)
    verb = add_verb(verbs, "import", "import published measurements of devices", _import)
    option(verb, "kind", "who published them", choices=KINDS)
    option(verb, "path", "their file or folder (aiconfigurator: also its wheel)", a_path)
