"""Fitting of compositions to networks that were measured end to end, and what they predict of networks held out.

A network that validates is predicted by compositions fitted without its family (the module of torchvision that defines it).
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from lib import store
from lib.measure import archive
from lib.predict.networks import composition, kinds, work
from lib.predict.networks.composition import LEAST_NETWORKS, TERMS, Composition
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.registry import Predictor
from lib.predict.training import CPU, Target
from lib.progress import track
from lib.work import dtypes, networks

# Networks to which the compositions are fitted; all others that were measured validate them.
TUNING = ("convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "mnasnet0_5", "mnasnet0_75", "mobilenet_v3_small",
          "regnet_x_3_2gf", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11", "vgg19_bn",
          "vit_b_16")
WORKLOADS = r"W\d+"  # networks that are workloads of this project, by their ids
_TERMS = [*TERMS, "outside", "looked_up", "memory_mb", "peak_mb"]
_COMPOSED = ("predicted_ms", "low_ms", "high_ms", "shipped_ms")
Works = Mapping[tuple[str, str, int], Work]


def measured_networks(folder: Path, target: Target = CPU) -> pd.DataFrame:
    """Return the networks that were measured end to end on a device of a reference machine; the last of each case counts."""
    tables = [store.read(path, "networks") for path in archive.networks_files(folder)]
    joined = pd.concat(tables, ignore_index=True) if tables else store.read_all([], "networks")
    own = target.of_device(joined)
    own = own[~own["network"].astype(str).str.contains(":", regex=False)]  # a user's own class is not here, or is another one
    return own.drop_duplicates(["network", "mode", "batch_size", "memory", "input_shape"], keep="last", ignore_index=True)


def works(cases: pd.DataFrame, target: Target = CPU) -> dict[tuple[str, str, int], Work]:
    """Capture the networks of a table ``networks`` as a target runs them; return the work by (network, mode, batch size)."""
    distinct = cases.drop_duplicates(["network", "mode", "batch_size"])
    return {(row.network, row.mode, int(row.batch_size)):
            work.captured(networks.network(row.network, int(row.batch_size), row.input_shape or ""), row.mode,
                          dtypes.torch_name(target.dtype), device=target.device_type)
            for row in track(list(distinct.itertuples()), "capture")}


def terms(model: CostModel, table: pd.DataFrame, items: Works) -> pd.DataFrame:
    """Return networks that were measured end to end (a table ``networks``) with what the model predicts of their operators.

    Columns beside those of ``networks``: ``family, tuning``, TERMS, ``outside, looked_up, memory_mb, peak_mb``.
    """
    measured, rows = Predictor(model.device, model.facts["dtype"], model).measured_times(), {}
    for key, item in items.items():
        operators = composition.predicted_operators(item, model, measured)
        rows[key] = {**composition.terms_of(item, operators), **composition.time_shares(operators),
                     "memory_mb": item.memory_mb, "peak_mb": item.peak_bytes / 1e6}
    keys = zip(table["network"], table["mode"], table["batch_size"].astype(int), strict=True)
    columns = pd.DataFrame([rows[key] for key in keys], index=table.index, columns=_TERMS)
    return table.assign(family=table["network"].map(networks.family), tuning=table["network"].isin(TUNING), **columns)


def kinds_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``network, kind`` of each network of a table ``networks``, see ``kinds.of_work``."""
    distinct = table.drop_duplicates("network").sort_values("network")
    several = works(distinct.assign(mode="infer"))
    return pd.DataFrame([{"network": name, "kind": kinds.of_work(item.table)} for (name, _, _), item in several.items()])


def compositions(table: pd.DataFrame, without: str = "") -> dict[str, Composition]:
    """Fit a composition for each mode and way with memory to the tuning networks of a table of ``terms``.

    ``without`` names a family of networks that is left out. Cases of fewer than LEAST_NETWORKS have none.
    """
    good = table[table["tuning"] & (table["status"] == "ok") & (table["verdict"] != "unusable") & (table["family"] != without)]
    fitted: dict[str, Composition] = {}
    for memory in ("kept", "default"):
        for mode, rows in good[good["memory"] == memory].groupby("mode"):
            if rows["network"].nunique() < LEAST_NETWORKS:
                continue
            several = zip(rows["network"], rows[list(TERMS)].to_dict("records"), rows["latency_ms"], strict=True)
            fitted[f"{mode} {memory}"] = composition.fit(several, fitted.get(f"{mode} kept"))
    return fitted


def composed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``terms`` with ``predicted_ms, low_ms, high_ms`` and ``shipped_ms``.

    Networks that validate are predicted by compositions fitted without their family; ``shipped_ms`` is what the shipped ones
    predict. Cases without a composition are left out.
    """
    shipped, rows = compositions(table), []
    without = {family: compositions(table, family) for family in set(table["family"][table["tuning"]])}
    for row in table.to_dict("records"):
        case = f"{row['mode']} {row['memory']}"
        held_out = shipped if row["tuning"] else without.get(row["family"], shipped)
        if case not in held_out or case not in shipped:
            continue
        predicted_ms, low_ms, high_ms = held_out[case].predict(row, row["outside"])
        rows.append({**row, "predicted_ms": predicted_ms, "low_ms": low_ms, "high_ms": high_ms,
                     "shipped_ms": shipped[case].predict(row)[0]})
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*table, *_COMPOSED])))


def fit_networks(model: CostModel, folder: Path, target: Target = CPU) -> pd.DataFrame:
    """Fit the model's compositions to the tuning networks, where there are enough; return all networks as ``composed`` does."""
    measured = measured_networks(folder, target)
    table = terms(model, measured, works(measured, target))
    model.compositions |= {case: asdict(fitted) for case, fitted in compositions(table).items()}
    return composed(table)
