"""The verb ``data``: fetch and check data sets, describe tables, pack and unpack results, copy a folder to and from a URL."""

import argparse

from lib import paths
from lib.cli.options import a_path, add_verb, flag, folder_name, new_file, note, option
from lib.errors import InputError, choices


def _medmnist(options: argparse.Namespace) -> bool:
    from lib.config import definitions
    from lib.work import medmnist_files

    wanted = options.names or sorted({w.dataset for w in definitions.workloads().values()} - {"imagefolder"})
    pairs = [(name, size) for name in wanted for size in ([options.size] if options.size else _sizes(name))]
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


def _sizes(dataset: str) -> list[int]:
    """Return the native sizes that the workloads read of a dataset; 28 for one that none of them reads."""
    from lib.config import definitions
    from lib.work import medmnist_files

    used = {medmnist_files.native_size(w.dataset, w.size, "native") for w in definitions.workloads().values()
            if w.dataset == dataset}
    return sorted(used or {28})


def _dictionary(options: argparse.Namespace) -> None:
    from lib import files, tables

    page = paths.ROOT / "data" / "README.md"
    print(files.replace(page, tables.with_dictionary(page.read_text()).encode()) if options.write else tables.dictionary())


def _push(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    print(f"{len(data_copy.push(options.folder, options.url))} files pushed, each checked by SHA-256")


def _pull(options: argparse.Namespace) -> None:
    from lib.work import data_copy

    print(f"{len(data_copy.pull(options.url, options.folder))} files are there, each checked by SHA-256")


def _pack(options: argparse.Namespace) -> None:
    from lib.measure import packing

    target, count = packing.pack(options.file)
    print(f"{target}: {count} files")


def _unpack(options: argparse.Namespace) -> None:
    from lib.measure import packing

    folder = packing.unpack(options.file, options.name)
    print(f"{folder}: -p reference {folder.name}, models --train {folder.name}")


def add(verbs) -> None:
    """Add the verb of data sets, tables and copies."""
    verb = verbs.add_parser("data", description="fetch or check MedMNIST files, print the tables' dictionary, pack or unpack "
                             "results, push or pull a folder")
    actions = verb.add_subparsers(dest="action", required=True, metavar="action")
    for name, text in (("fetch", "download MedMNIST files"), ("check", "check MedMNIST files")):
        add_verb(actions, _medmnist, name, text,
                 option("names", "datasets (default: those of the workloads)", nargs="*"),
                 option("--size", "native size (default: as workloads read)", int, choices=(28, 64, 128, 224)))
    add_verb(actions, _dictionary, "dictionary", "print the dictionary of the tables",
             flag("--write", "write it into data/README.md instead"))
    add_verb(actions, _pack, "pack", "pack what was measured on this machine into a zip",
             option("file", "the zip to write (default: <machine>.zip)", new_file, nargs="?"))
    add_verb(actions, _unpack, "unpack", "unpack another machine's results to data/imported/<machine>",
             option("file", "a zip of data pack", a_path),
             option("--name", "name of the machine here (default: as in the zip)", folder_name))
    folder = option("folder", "the folder here", a_path)
    url = option("url", "a folder, or an address that fsspec knows, such as s3://bucket/lab")
    add_verb(actions, _push, "push", "copy a folder to a URL, with checksums; hidden files are left out", folder, url)
    add_verb(actions, _pull, "pull", "copy a pushed folder from a URL; local files that differ are never overwritten",
             url, folder)
