"""Manifests of versions of data in a remote: which files a version has, and which versions a branch has."""

import re
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from lib import files, store
from lib.config.base import Count, PlainName, Positive, Strict, parse, text, whole
from lib.errors import InputError, choices
from lib.work.remote import Remote

FILE_MB, MOST_FILES = 1000, 20_000
_ALL_MB, _MANIFEST_MB = 20_000, 20
_END = b"\n}\n"  # of a manifest; no shorter part of one ends so
_MOST_NUMBER = 999_999  # of a version: its manifest has six digits


class Entry(Strict):
    """A file of a version; ``rows`` of a table, None of anything else."""

    name: text(rf"^{files.NAME}(/{files.NAME}){{0,9}}$")
    sha256: text(r"^[0-9a-f]{64}$")
    bytes: whole(0, FILE_MB * 10**6)
    rows: Count | None


class Manifest(Strict):
    """A version: its files, where they come from, and when it was written (UTC)."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    branch: PlainName
    number: Positive
    written_utc: str
    source: str
    files: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MOST_FILES)]

    @model_validator(mode="after")
    def _files_fit_together(self) -> "Manifest":
        """Refuse names that some file system holds for one, a file in the place of a folder, and more than is read."""
        names = [entry.name.lower() for entry in self.files]
        above = {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}
        wrong = [name for name, times in Counter(names).items() if times > 1 or name in above]
        if wrong:
            raise ValueError(f"{wrong[0]} is there twice")
        if (total := sum(entry.bytes for entry in self.files)) > _ALL_MB * 1e6:
            raise ValueError(f"has {total / 1e6:,.0f} MB; a version has at most {_ALL_MB:,}")
        return self

    def encoded(self) -> bytes:
        """Return the manifest as the content of its file."""
        return store.encoded_json(self.model_dump(mode="json", by_alias=True))


def path_of(branch: str, number: int) -> str:
    """Return where the manifest of a version lies in a remote."""
    return f"branches/{branch}/{number:06}.json"


def numbers(remote: Remote, branch: str) -> list[int]:
    """Return the numbers of a branch's manifests, torn ones included."""
    there = [int(match[1]) for name in remote.names(f"branches/{branch}") if (match := re.fullmatch(r"(\d{6})\.json", name))]
    if there and max(there) >= _MOST_NUMBER:
        raise InputError(f"{remote.address}: branch {branch} holds a version {max(there)}, after which there can be none; "
                         "remove that manifest, or name another branch")
    return there


def last(remote: Remote, branch: str, there: list[int]) -> tuple[Manifest | None, tuple[str, ...]]:
    """Return a branch's last whole version, None where it has none, and a note on each torn manifest after it."""
    notes = []
    for number in sorted(there, reverse=True):
        manifest = read(remote, branch, number)
        if manifest:
            return manifest, tuple(notes)
        notes.append(f"{remote.address}: the manifest of version {number} of {branch} is torn (a push that was cut short); "
                     "it is passed over")
    return None, tuple(notes)


def read(remote: Remote, branch: str, number: int) -> Manifest | None:
    """Return a manifest, None where it is torn or missing; InputError for one that does not fit."""
    content, where = remote.read(path_of(branch, number), _MANIFEST_MB * 10**6), f"{remote.address}: {path_of(branch, number)}"
    if content is None or not content.endswith(_END):
        return None
    manifest = parse(Manifest, content, where)
    if (manifest.branch, manifest.number) != (branch, number):
        raise InputError(f"{where} is the manifest of version {manifest.number} of {manifest.branch}")
    return manifest


def wanted(remote: Remote, branch: str, version: int | None) -> tuple[Manifest, tuple[str, ...]]:
    """Return a version, by default a branch's last; InputError lists what there is."""
    there = numbers(remote, branch)
    if not there:
        raise InputError(f"{remote.address} has no branch {branch}; it has: {choices(remote.names('branches')) or 'none'}")
    manifest, notes = last(remote, branch, there) if version is None else (read(remote, branch, version), ())
    if manifest is None:
        raise InputError(f"{remote.address}: branch {branch} has no whole version{'' if version is None else f' {version}'}; "
                         f"its manifests are: {choices(sorted(there))}")
    return manifest, notes
