"""The verbs that carry measurements from one machine to another: ``bundle``, ``import``. Imports nothing heavy."""

import argparse
from pathlib import Path

from lib import paths
from lib.cli.options import a_path, add_verb, flag, new_file, option
from lib.errors import InputError, choices


def _readers() -> dict:
    """Return who reads what a bundle holds besides tables, by kind."""
    from lib import store
    from lib.predict import registry
    from lib.schedule.run import record as run_record

    return {"model": registry.load, "record": run_record.ends, "summary": store.read_json}


def pack(target: Path | None, with_host_name: bool) -> str:
    """Pack what was measured here into ``target`` (None: <machine>.zip); return a line that names the bundle and its files."""
    from lib.measure import bundle, machine

    readers = _readers()
    name = bundle.machine_of(machine.name(), readers=readers)
    target = target or Path(f"{name}.zip")
    names = bundle.pack(target, name, host_name=with_host_name, readers=readers)
    return f"{target}: {len(names)} files"


def _bundle(options: argparse.Namespace) -> None:
    print(pack(options.out, options.with_host_name))


def _print(tables, what: str = "") -> None:
    """Print a line a device: how many rows were written where, and of power how many are of short windows."""
    for device, (target, table) in tables.items():
        short = f"; {(table['window'] == 'short').sum()} of them ran in windows too short for the sensor" if what else ""
        print(f"{device}: " + (f"power of {len(table)} {what}" if what else f"{len(table)} rows") + f" in {target}{short}")
    if not tables:
        print(f"power of {what}: no file has the columns power and power_limit")


def _import(options: argparse.Namespace) -> None:
    from lib.measure import importers

    if options.kind == "aiconfigurator":
        from lib.measure.published import aiconfigurator

        written = aiconfigurator.bring_in(options.path)
        _print(written["sweep"])
        _print(written["power"], "GEMMs")
    elif options.kind == "timm":
        from lib.measure.published import whole_networks

        _print(whole_networks.bring_in(options.path))
    elif options.kind != "bundle":
        _print(importers.bring_in(options.kind, options.path))
        if options.kind == "neusight" and (ignored := importers.neusight_ignored(options.path)):
            print(f"ignored: {choices(ignored)}")
    else:
        _merge(options)


def _merge(options: argparse.Namespace) -> None:
    from lib import store
    from lib.measure import bundle
    from lib.measure.operators import export

    if options.path is None:
        raise InputError("import bundle needs the path of a bundle")
    folder, new = bundle.merge(options.path, paths.REFERENCE if options.reference else None, _readers())
    for path in sorted(folder.glob("sweeps/*/sweep.parquet")):  # a bundle holds tables, not what is derived from them
        export.write(store.read(path, "sweep"), path.parent)
    print(f"{folder}: {new} files new or grown; a reference by its name: --reference or -p reference {folder.name}")


def add(verbs) -> None:
    """Add the verbs that carry measurements from one machine to another."""
    add_verb(verbs, _bundle, "bundle", "pack what was measured on this machine into one file",
             option("--out", "the file to write (default: <machine>.zip)", new_file),
             flag("--with-host-name", "keep the host's name and the folders in paths (default: left out)"))
    add_verb(verbs, _import, "import", "import another machine's bundle, or published measurements",
             option("kind", choices=("bundle", "neusight", "pytorch-scheduler", "aiconfigurator", "timm")),
             option("path", "file or folder (aiconfigurator: or a wheel; default: as installed)", a_path, nargs="?"),
             flag("--reference", "into data/reference, to be committed, instead of data/imported"))
