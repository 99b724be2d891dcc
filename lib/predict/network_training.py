"""Learning from networks that were measured end to end, and what that predicts of networks whose family is held out.

A network is predicted by what was learned without its family (the module of torchvision that defines it).
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lib.measure import archive
from lib.measure.statistics import is_usable
from lib.predict.networks import architectures, composition, fitting, resident, work
from lib.predict.networks.composition import TERMS, TIME_TERMS, Composition
from lib.predict.networks.fitting import WORKLOADS, Learned
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel
from lib.predict.operators.lines import Lines
from lib.predict.registry import Predictor
from lib.predict.training import CPU, Target
from lib.progress import track
from lib.work import dtypes, networks

# Networks whose operators were swept, too; all others that were measured validate.
TUNING = ("convnext_tiny densenet121 efficientnet_b0 googlenet mnasnet0_5 mnasnet0_75 mobilenet_v3_small regnet_x_3_2gf "
          "regnet_y_400mf resnet18 shufflenet_v2_x0_5 squeezenet1_1 swin_t vgg11 vgg19_bn vit_b_16").split()
_PARTS = [*TIME_TERMS, "outside", "looked_up", "memory_mb", "peak_mb", "blocks_mb", "flops", "bytes", "calls"]
_COMPOSED = ("predicted_ms", "low_ms", "high_ms", "shipped_ms")
Works = Mapping[tuple[str, str, int], Work]


def measured_networks(folder: Path, target: Target = CPU) -> pd.DataFrame:
    """Return the networks that were measured end to end on a device of a reference machine; the last of each case counts."""
    table = target.of_device(archive.networks(folder))
    table = table[~table["network"].astype(str).str.contains(":", regex=False)]  # a user's class is not here, or is another one
    return table.drop_duplicates(["network", "mode", "batch_size", "memory", "input_shape"], keep="last", ignore_index=True)


def works(cases: pd.DataFrame, target: Target = CPU) -> dict[tuple[str, str, int], Work]:
    """Capture the networks of a table ``networks`` as a target runs them; return the work by (network, mode, batch size)."""
    distinct = cases.drop_duplicates(["network", "mode", "batch_size"])
    return {(row.network, row.mode, int(row.batch_size)):
            work.captured(networks.network(row.network, int(row.batch_size), row.input_shape or ""), row.mode,
                          dtypes.torch_name(target.dtype), device=target.device_type)
            for row in track(list(distinct.itertuples()), "capture")}


def terms(model: CostModel | Lines, table: pd.DataFrame, items: Works) -> pd.DataFrame:
    """Return networks that were measured end to end (a table ``networks``) with what the model predicts of their operators.

    Columns beside those of ``networks``: ``family, tuning``, ``kind`` (``architectures.of_work``), ``first_use`` (whether its
    process measured it first, in the order of the table), TIME_TERMS, TERMS by the model's efficiencies, ``outside, looked_up,
    memory_mb, peak_mb, blocks_mb, flops, bytes, calls``.
    """
    measured, rows, kinds = Predictor(model.device, model.facts["dtype"], model).measured_times(), {}, {}
    for (name, mode, batch_size), item in items.items():
        operators = composition.predicted_operators(item, model, measured)
        rows[name, mode, batch_size] = {**composition.parts_of(item, operators), **composition.time_shares(operators),
                                        **resident.parts_of(item), "flops": item.flops, "bytes": item.bytes,
                                        "calls": float(item.table["calls"].sum())}
        if mode == "infer" or name not in kinds:  # of its inference, where that was captured
            kinds[name] = architectures.of_work(item.table)
    keys = zip(table["network"], table["mode"], table["batch_size"].astype(int), strict=True)
    columns = pd.DataFrame([rows[key] for key in keys], index=table.index, columns=_PARTS)
    named = table.assign(family=table["network"].map(networks.family), tuning=table["network"].isin(TUNING),
                         kind=table["network"].map(kinds), first_use=~table.duplicated(["network", "memory"]), **columns)
    return with_terms(named, model.efficiencies)


def with_terms(table: pd.DataFrame, efficiencies: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return a table with TIME_TERMS, and TERMS by the efficiencies of each row's mode."""
    rows = [composition.terms(row, efficiencies.get(row["mode"], {})) for row in table.to_dict("records")]
    return table.assign(**pd.DataFrame(rows, index=table.index, columns=list(TERMS)))


def learned(table: pd.DataFrame, without: str = "") -> dict[str, Learned]:
    """Learn what networks add to their operators, by mode, from all networks of a table of ``terms`` but workloads.

    ``without`` names a family of networks that is left out. Modes of too few networks have none (``fitting.enough``).
    """
    return {mode: fitting.fit(rows) for mode, rows in fitting.enough(table[is_usable(table)], "mode", without)}


def compositions(modes: Mapping[str, Learned]) -> dict[str, Composition]:
    """Return the compositions of what was learned, by mode and way with memory."""
    return {f"{mode} {memory}": fitted for mode, learned in modes.items() for memory, fitted in learned.compositions.items()}


def composed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``terms`` with ``predicted_ms, low_ms, high_ms`` and ``shipped_ms``.

    Networks are predicted by what was learned without their family; ``shipped_ms`` is what is learned of all, as are TERMS.
    Cases without a composition are left out.
    """
    families = table["family"].mask(table["network"].str.fullmatch(WORKLOADS), "")  # no workload is learned from
    without, rows = {family: learned(table, family) for family in {"", *families}}, []
    shipped = without[""]
    named = with_terms(table, {mode: fitted.efficiencies for mode, fitted in shipped.items()}).to_dict("records")
    for family, row in zip(families, named, strict=True):
        mode, memory = row["mode"], row["memory"]
        if mode in shipped and mode in without[family]:
            times = without[family][mode].predict(memory, row, row["outside"]), shipped[mode].predict(memory, row)
            rows.append({**row, **dict(zip(_COMPOSED, (*times[0], times[1][0]), strict=True))})
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*table, *TERMS, *_COMPOSED])))


def fit_networks(model: CostModel, folder: Path, target: Target, lines: Lines) -> pd.DataFrame:
    """Learn what networks add to the model's operators, where there are enough, and what resident memory they take.

    Returns all networks as ``composed`` does, with their resident memory, and ``lines_ms``: learned likewise upon ``lines``.
    """
    measured = measured_networks(folder, target)
    items = works(measured, target)
    table = terms(model, measured, items)
    modes = learned(table)
    model.compositions |= compositions(modes)
    model.efficiencies |= {mode: dict(fitted.efficiencies) for mode, fitted in modes.items()}
    model.resident |= resident.learned(table)
    return resident.predicted(composed(table)).assign(lines_ms=composed(terms(lines, measured, items))["predicted_ms"])
