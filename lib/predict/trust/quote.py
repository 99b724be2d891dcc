"""The errors quoted beside an answer: those of held-out networks most like it, or of the operators that take its time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lib.measure import archive
from lib.measure.statistics import VERDICTS
from lib.predict.networks import architectures
from lib.predict.networks.composition import Estimate
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import errors
from lib.predict.trust.errors import Row

NUMBERS = (*errors.NUMBERS, "n")
COLUMNS = (*(f"held_out_{name}" for name in NUMBERS), "held_out")
_FEW = 10  # networks of a kind, below which those of all kinds are quoted, too
_PARTS, _LITTLE = 3, 0.05  # of a model that are named; the share of the time below which one is not


@dataclass(frozen=True)
class Quote:
    """NUMBERS of what was held out, empty where nothing was, and a line that says of what."""

    numbers: Mapping[str, float]
    words: str

    @property
    def columns(self) -> Row:
        """Give COLUMNS."""
        return {**{f"held_out_{name}": self.numbers.get(name, math.nan) for name in NUMBERS}, COLUMNS[-1]: self.words}


def quote(predictor: Predictor, work: Work, passes: Estimate, memory: str = "default") -> Quote:
    """Return what was held out that is most like an answer; ``memory``: the allocator's of a CPU's passes."""
    if condition := passes.provenance.condition:
        card = predictor.card.under(condition)
        fitted = card.conditions[condition]
        about = "no network was measured on it so; " if fitted.basis == "others" else ""
        if fitted.corrected_since:
            about += f"corrected since by {fitted.corrected_since} of its networks; "
        return _of_kind(errors.of_card(card, condition), architectures.of_work(work.table), about)
    if predictor.device_type == "cpu":
        return _of_calibration(predictor, work.mode, memory) if CALIBRATED in predictor.model.facts else \
            _of_cpu(predictor, work, memory)
    return _of_operators(predictor, passes)


def _of_kind(rows: Iterable[Row], kind: str, about: str = "") -> Quote:
    """Return the row of a kind, and that of all kinds beside it where it is of few, or in its place where it is of none."""
    of_kinds = {row["kind"]: row for row in rows}
    of_all = of_kinds[errors.ALL]
    if kind not in of_kinds:
        return _quoted(of_all, f"{about}{f'no {kind} network was held out; ' if len(of_kinds) > 1 else ''}")
    of_kind = of_kinds[kind]
    return _quoted(of_kind, about, f" (few; all kinds: {_errors(of_all)})" if of_kind["n"] < _FEW else "")


def _quoted(row: Row, about: str = "", more: str = "") -> Quote:
    return Quote(row, f"{about}{row['kind']} networks on {errors.case_of(row)}: {_errors(row)}{more}; left out: "
                      f"{row['left_out']} ({row['source']})")


def _errors(row: Row) -> str:
    parts = [f"MAPE {row['mape_pct']:.1f} %, median {row['median_pct']:.1f} %"]
    if math.isfinite(row["bias_pct"]):
        parts.append(f"bias {row['bias_pct']:+.1f} %")
    if math.isfinite(row["coverage_pct"]):
        parts.append(f"{row['coverage_pct']:.0f} % inside their intervals")
    return ", ".join([*parts, f"n {row['n']:,}"])


def _of_cpu(predictor: Predictor, work: Work, memory: str) -> Quote:
    """Return the errors of networks on the machine of a CPU's model: of the batch size that is nearest.

    Where the heap was not measured they are those of the other one, whose interval the answer has.
    """
    machines, name = archive.machines(imported=True), predictor.machine or predictor.model.facts.get("machine", "")
    heap = predictor.composition(work.mode, memory).interval_of or memory
    sizes, rows = _of_machine(name, machines[name], _written(machines[name]), work.mode, heap) if name in machines else ([], [])
    if not sizes:
        return Quote({}, f"no network with the {errors.ALLOCATORS[memory]} was held out on the machine of this model")
    nearest = min(sizes, key=lambda size: abs(math.log(size / work.batch_size)))
    condition = errors.condition_of_cpu(heap, nearest)
    about = ("not of this machine: " if predictor.origin else "") + _other_heap(memory, heap) + \
        ("forward and backward of " if work.mode == "train" else "")
    return _of_kind([row for row in rows if row["condition"] == condition], architectures.of_work(work.table), about)


def _other_heap(memory: str, heap: str) -> str:
    """Return what is said of a heap that was not measured, in whose place another one stands."""
    return "" if heap == memory else (f"no network was measured with the {errors.ALLOCATORS[memory]}, its interval is that "
                                      f"with the {errors.ALLOCATORS[heap]}; ")


@cache
def _of_machine(name: str, folder: Path, _: float, mode: str, heap: str) -> tuple[list[int], list[Row]]:
    """Return the batch sizes that usable networks were held out at on a machine, by mode and heap, and the rows of its mode."""
    networks = errors.machine_networks(folder)
    usable = networks[(networks["mode"] == mode) & (networks["memory"] == heap) & (networks["verdict"] != VERDICTS[-1])]
    return [int(size) for size in sorted(set(usable["batch_size"]))], [
        row for row in errors.of_its_networks(name, folder) if row["what"] == errors.NETWORKS and row["mode"] == mode]


def _written(folder: Path) -> float:
    path = folder / "predictions" / "networks.csv"
    return path.stat().st_mtime if path.is_file() else 0.0


def _of_calibration(predictor: Predictor, mode: str, memory: str) -> Quote:
    """Return the errors of the networks that a calibration measured, each left out."""
    fitted = predictor.composition(mode, memory)
    if not fitted.networks or not fitted.scores:
        with_heap = f" with the {errors.ALLOCATORS[memory]}" if fitted.networks else ""
        return Quote({}, f"no network was measured{with_heap} when this machine was calibrated")
    return _quoted(errors.row(predictor.device, errors.NETWORKS, errors.ALL, mode, errors.condition_of_cpu(memory),
                                fitted.scores, "each network of the calibration", "measured here"))


def _of_operators(predictor: Predictor, passes: Estimate) -> Quote:
    """Return the mean errors of the model's parts, by their shares of the time: no network was measured on the device."""
    table, model = passes.operators, predictor.model
    times = (table["predicted_ms"] * table["calls"]).groupby(table["part"]).sum().sort_values(ascending=False)
    shares = times / times.sum()
    rows = {name: errors.of_part(model, name) for name in shares.index if model.parts[name].scores}
    scored = shares[list(rows)]
    text = [f"{name} {share:.0%}{_whose(model.parts[name].origin)}: "
            + (f"MAPE {rows[name]['mape_pct']:.1f} %, n {rows[name]['n']:,}" if name in rows else "nothing measured")
            for name, share in shares.head(_PARTS).items() if share > _LITTLE]
    words = f"no network was measured there; of its operators, by share of the time: {'; '.join(text)}"
    if not len(scored):
        return Quote({}, words)
    means = {name: float(sum(share * rows[part][name] for part, share in scored.items()) / scored.sum())
             for name in NUMBERS if name != "n"}
    left_out = "; ".join(dict.fromkeys(f"{row['left_out']} ({row['source']})" for row in rows.values()))
    return Quote({**means, "n": sum(row["n"] for row in rows.values())}, f"{words}; left out: {left_out}")


def _whose(origin: str) -> str:
    return f" (by {origin})" if origin else ""
