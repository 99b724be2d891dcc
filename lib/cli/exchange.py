"""The verb ``import``: published measurements become tables. Imports nothing heavy."""

import argparse

from lib.cli.options import a_path, add_verb, option

KINDS = ("neusight", "pytorch-scheduler", "aiconfigurator", "timm")


def _import(options: argparse.Namespace) -> None:
    from lib.predict import published

    for path, rows in published.import_tables(options.kind, options.path).items():
        print(f"{path}: {rows} rows")


def add(verbs) -> None:
    """Add the verb that imports published measurements."""
    add_verb(verbs, _import, "import", "import published measurements of devices not at hand",
             option("kind", "who published them", choices=KINDS),
             option("path", "their file or folder (aiconfigurator: also its wheel)", a_path))
