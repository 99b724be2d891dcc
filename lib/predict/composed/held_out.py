"""How wrong a composed model was on networks whose family it never saw: by kind of network and by family (file of timm)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import csv_files, files
from lib.predict.composed import model_file
from lib.predict.composed.features import Condition
from lib.predict.composed.training import Cases
from lib.predict.networks import kinds
from lib.predict.operators.validation import half_interval

FILE = "families.csv"
ALL, KIND, FAMILY, AGAIN = "all", "kind", "family", "measured again"  # what a group of networks is of
SCORES = ("mape", "median", "p90", "bias", "within_10", "n")
COLUMNS = ("device", "condition", "group", "name", *SCORES, "coverage", "half")
_LEAST = 50  # networks of a kind outside of any fold, and it has an interval of its own
_HOLDS = 0.86  # of a nominal 0.9


def scores(log_predicted: np.ndarray, log_measured: np.ndarray) -> dict[str, float]:
    """Return MAPE, median, p90 and bias in %, the share within 10 % in %, and n."""
    error = np.expm1(log_predicted - log_measured) * 100
    size = np.abs(error)
    return {"mape": size.mean(), "median": np.median(size), "p90": np.quantile(size, 0.9), "bias": error.mean(),
            "within_10": (size < 10).mean() * 100, "n": float(len(size))}  # noqa: PLR2004 - percent


def inside(error: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return whether each log error lies in the interval that the errors of the other folds give."""
    covered = np.zeros(len(error), bool)
    for number in np.unique(fold):
        covered[fold == number] = np.abs(error[fold == number]) <= half_interval(error[fold != number])
    return covered


def intervals(error: np.ndarray, fold: np.ndarray, kind: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Return whether each log error lies in its interval, see ``inside``, and half the interval of all and of each kind.

    A kind has that of all where fewer than _LEAST of its networks lie outside of any one fold, and where its own holds too few
    (less than _HOLDS) of those that it did not see, fewer than that of all.
    """
    covered, halves = inside(error, fold), {ALL: half_interval(error)}
    for name in np.unique(kind):
        own = kind == name
        if all((own & (fold != number)).sum() >= _LEAST for number in np.unique(fold[own])):
            its = inside(error[own], fold[own])
            if its.mean() >= min(_HOLDS, covered[own].mean()):
                covered[own], halves[str(name)] = its, half_interval(error[own])
    return covered, halves


def table(device: str, several: Mapping[Condition, tuple[pd.DataFrame, Cases]], predicted: Mapping[Condition, np.ndarray],
          fold: Mapping[str, int], captures: Mapping[tuple[str, int], pd.DataFrame]) -> pd.DataFrame:
    """Return COLUMNS: scores of networks without their family, all of them, by kind and by family, under each condition.

    And of labels against those of the same networks measured again, see AGAIN.
    ``predicted`` are log ms as ``evaluation.left_out`` gives them, ``fold`` the number of each family, ``captures`` their work.
    """
    lines = []
    for condition, (part, one) in several.items():
        of_kind = np.array([kinds.of_rows(captures[key]) for key in zip(part["network"], part["image_size"], strict=True)])
        error = predicted[condition] - one.log_ms
        covered, halves = intervals(error, part["module"].map(fold).to_numpy(), of_kind)
        for group, names in ((ALL, np.full(len(part), ALL)), (KIND, of_kind), (FAMILY, part["module"].to_numpy(str))):
            for name in np.unique(names):
                own = names == name
                lines.append({"device": device, "condition": condition.name, "group": group, "name": name,
                              **scores(predicted[condition][own], one.log_ms[own]), "coverage": covered[own].mean() * 100,
                              "half": halves.get(name, np.nan) if group != FAMILY else np.nan})
    return pd.DataFrame([*lines, *_again(device, several)], columns=COLUMNS)


def _again(device: str, several: Mapping[Condition, tuple[pd.DataFrame, Cases]]) -> Iterator[dict[str, Any]]:
    """Yield how far labels differ where networks were measured again with another torch, alike in all else: the noise floor."""
    case = ["network", "image_size", "batch_size"]
    for first, second in combinations(sorted(several, key=lambda one: one.name), 2):
        if replace(first, torch=second.torch) != second:
            continue
        before, after = (part[case].assign(log_ms=one.log_ms) for part, one in (several[first], several[second]))
        both = before.merge(after, on=case)
        if len(both):
            yield {"device": device, "condition": second.name, "group": AGAIN, "name": f"torch {first.torch}",
                   **scores(both["log_ms_x"].to_numpy(), both["log_ms_y"].to_numpy()), "coverage": np.nan, "half": np.nan}


def save(several: pd.DataFrame, folder: Path | None = None) -> Path:
    """Write the table of all cards beside their models, rounded."""
    digits = dict.fromkeys(("mape", "median", "p90", "bias", "within_10", "coverage"), 2) | {"half": 4}
    return files.replace((folder or model_file.FOLDER) / FILE, several.round(digits).to_csv(index=False).encode())


def read(folder: Path | None = None) -> pd.DataFrame:
    """Return the table (COLUMNS) that ships with the composed models, without rows where there is none."""
    path = (folder or model_file.FOLDER) / FILE
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else pd.DataFrame(columns=COLUMNS)


@cache
def _read(path: Path, _: int) -> pd.DataFrame:
    return csv_files.with_columns(path, COLUMNS, model_file.RETRAIN)


def of_kinds(device: str, condition: Condition, folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the rows of a card under a condition by kind of network, and that of all (ALL); empty where there are none."""
    path = (folder or model_file.FOLDER) / FILE
    return _by_case(path, path.stat().st_mtime_ns).get((device, condition.name), {}) if path.is_file() else {}


@cache
def _by_case(path: Path, written: int) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    table = _read(path, written)
    return {case: {row["name"]: row for row in rows.to_dict("records")}
            for case, rows in table[table["group"].isin((ALL, KIND))].groupby(["device", "condition"])}


def half_of(device: str, condition: Condition, kind: str, folder: Path | None = None) -> float | None:
    """Return half the 90 % interval of a kind of network in log time; None where too few of it were left out to have one."""
    half = of_kinds(device, condition, folder).get(kind, {}).get("half", np.nan)
    return None if np.isnan(half) else half
