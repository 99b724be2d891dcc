"""The verb ``import``: published measurements become tables. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, option
from lib.errors import choices


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
    else:
        _print(importers.bring_in(options.kind, options.path))
        if options.kind == "neusight" and (ignored := importers.neusight_ignored(options.path)):
            print(f"ignored: {choices(ignored)}")


def add(verbs) -> None:
    """Add the verb that imports published measurements."""
    add_verb(verbs, _import, "import", "import published measurements of devices that are not at hand",
             option("kind", choices=("neusight", "pytorch-scheduler", "aiconfigurator", "timm")),
             option("path", "file or folder (aiconfigurator: or a wheel; default: as installed)", a_path, nargs="?"))
