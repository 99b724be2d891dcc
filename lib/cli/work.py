"""The verb of what is run: ``data``, which fetches, checks and describes, and carries versions of a folder to and fro."""

import argparse

from lib import paths
from lib.cli.options import a_path, add_verb, flag, note, option, whole
from lib.errors import InputError, printable

FOLDER = paths.DATA / "layer_power"
_KILOBYTES = 1e5  # bytes, up to which a size is given in kB


def _medmnist(options: argparse.Namespace) -> bool:
    from lib.config import definitions
    from lib.work import medmnist_files

    wanted = options.names or sorted({w.dataset for w in definitions.workloads().values()} - {"imagefolder"})
    pairs = [(name, size) for name in wanted for size in ([options.size] if options.size else _sizes(name))]
    for name, size in pairs:  # a wrong name fails before anything is fetched
        medmnist_files.published(name, size)
    failed = False
    for name, size in pairs:
        path = medmnist_files.located(name, size)
        try:
            if options.action == "fetch":
                medmnist_files.fetch(name, size)
            counts = medmnist_files.check_file(path, name, size)
            official = "official" if medmnist_files.is_official(path, name, size) else "NOT the official file (MD5 differs)"
            print(f"{path}: {counts}, {official}")
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
    from lib.work import data_versions

    _show(data_versions.push(options.local, options.remote, options.remote_dir, options.source), "pushed")


def _pull(options: argparse.Namespace) -> None:
    from lib.work import data_versions

    _show(data_versions.pull(options.local, options.remote, options.remote_dir, options.version), "pulled")


def _show(transfer, what: str) -> None:
    for text in transfer.notes:
        note(f"note: {text}")
    version = transfer.manifest
    size = sum(entry.bytes for entry in version.files)
    text = f"{size / 1e6:,.1f} MB" if size > _KILOBYTES else f"{size / 1e3:,.1f} kB"
    print(f"version {version.number} of {version.branch}, {version.written_utc}: {len(version.files)} files, "
          f"{text}, {len(transfer.carried)} of them {what}; "
          f"source: {printable(version.source)}")


def add(verbs) -> None:
    """Add the verb of datasets, tables and versions of data."""
    verb = verbs.add_parser("data", help="fetch or check MedMNIST files, print the tables' dictionary, push or pull a folder")
    actions = verb.add_subparsers(dest="action", required=True, metavar="action")
    for name, text in (("fetch", "download MedMNIST files"), ("check", "check MedMNIST files")):
        add_verb(actions, _medmnist, name, text,
                 option("names", "datasets (default: those of the workloads)", nargs="*"),
                 option("--size", "native size (default: as workloads read)", int, choices=(28, 64, 128, 224)))
    add_verb(actions, _dictionary, "dictionary", "print the dictionary of the tables",
             flag("--write", "write it into data/README.md instead"))
    shared = (option("remote", "a folder, or an address that fsspec knows, such as s3://bucket/ (default branch: main)",
                     metavar="REMOTE[@branch]"),
              option("--local", "the folder here", a_path, FOLDER, metavar="DIR"),
              option("--remote-dir", "a folder within the remote (default: its root)", default="", metavar="DIR"))
    add_verb(actions, _push, "push", "push a folder as the next version of a remote's branch; hidden files are left out",
             option("--source", "origin of the data, shown when they are pulled", default=""), *shared)
    add_verb(actions, _pull, "pull", "copy a version into a folder; local files that differ are never overwritten",
             option("--version", "its number (default: the last)", whole(1, 999_999)), *shared)
