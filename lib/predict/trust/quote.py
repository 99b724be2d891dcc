"""The errors quoted beside an answer: those of held-out networks most like it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lib import files
from lib.errors import choices
from lib.measure import archive
from lib.predict.gpu import scores
from lib.predict.gpu.model import NEW
from lib.predict.networks import architectures
from lib.predict.networks.work import Work
from lib.predict.scores import score
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import errors
from lib.predict.trust.errors import ALL, ALLOCATORS, NETWORKS, Row

NUMBERS = {name: errors.SCORES[name] for name in ("mape", "median", "bias", "cover", "n")}
COLUMNS = (*(f"held_out_{name}" for name in NUMBERS.values()), "held_out")
_FEW = 10  # networks of a kind, below which those of all kinds are quoted, too


@dataclass(frozen=True)
class Quote:
    """NUMBERS of what was held out, empty where nothing was, and a line that says of what."""

    numbers: Mapping[str, float]
    words: str

    @property
    def columns(self) -> Row:
        """Give COLUMNS."""
        return dict(zip(COLUMNS, (*(self.numbers.get(name, math.nan) for name in NUMBERS), self.words), strict=True))


def quote(answer) -> Quote:
    """Return what was held out that is most like an answer (``advice.query.Answer``) to a question about a network."""
    gain, of_cpu = answer.passes.provenance.gain, _of_calibration if CALIBRATED in answer.predictor.model.facts else _of_cpu
    quoted = _of_gpu(answer) if answer.condition else of_cpu(answer)
    if call := answer.passes.provenance.call:
        quoted = Quote(quoted.numbers, f"{quoted.words}; {call}")
    if runtime := answer.passes.provenance.runtime:
        return Quote({}, f"eager in fp32: {quoted.words}; {runtime.evidence}")
    if gain:
        return Quote({}, f"in fp32, default layout: {quoted.words}; {gain.evidence}")
    return quoted


def _of_gpu(answer) -> Quote:
    """Return the errors of held-out networks that are most like the question, on the same card if it was measured."""
    prediction, condition = answer.passes.provenance.gpu, answer.condition
    rows = scores.like(answer.predictor.kind, prediction.scope, condition, architectures.of_rows(answer.captured.kernel_rows))
    if rows.empty:
        return Quote({}, "no network that ran so was held out")
    scored = score(*(rows[name].to_numpy(float) for name in ("measured", "predicted", "low", "high")), interval=False)
    about = "it learned from no network on this card; " if prediction.scope == NEW else ""
    if prediction.calibrated:
        about += f"corrected since by {prediction.calibrated} of its networks; "
    return _quoted({**scored, "device": choices(sorted(set(rows["device"]))), "kind": choices(sorted(set(rows["kind"]))),
                    "mode": condition.mode, "condition": condition.name, "left_out": choices(sorted(set(rows["left_out"]))),
                    "source": choices(sorted(set(rows["source"])))}, about)


def _of_kind(rows: Iterable[Row], work: Work, about: str = "") -> Quote:
    """Return the errors of a network's kind; beside a kind of few networks, or without the kind, the errors of all kinds."""
    of_kinds, kind = {row["kind"]: row for row in rows}, architectures.of_work(work.table)
    of_all = of_kinds[ALL]
    if kind not in of_kinds:
        return _quoted(of_all, f"{about}{f'no {kind} network was held out; ' if len(of_kinds) > 1 else ''}")
    of_kind = of_kinds[kind]
    return _quoted(of_kind, about, f" (few; all kinds: {_errors(of_all)})" if of_kind["n"] < _FEW else "")


def _quoted(row: Row, about: str = "", more: str = "") -> Quote:
    return Quote({**row, "n": int(row["n"])}, f"{about}{row['kind']} networks on {errors.case_of(row)}: "
                                                 f"{_errors(row)}{more}; left out: {row['left_out']} ({row['source']})")


def _errors(row: Row) -> str:
    """Return the errors of a row in words, those that are known."""
    forms = {"mape": "MAPE {:.1f} %", "median": "median {:.1f} %", "bias": "bias {:+.1f} %",
             "cover": "{:.0f} % inside their intervals", "n": "n {:,.0f}"}
    return ", ".join(form.format(row[name]) for name, form in forms.items() if math.isfinite(row.get(name, math.nan)))


def _of_cpu(answer) -> Quote:
    """Return the errors of networks on the machine of a CPU's model: of the batch size that is nearest.

    Where the heap was not measured they are those of the other one, whose interval the answer has.
    """
    predictor, work, memory, mode = answer.predictor, answer.work, answer.heap, answer.work.mode
    name, heap = predictor.machine or predictor.model.facts.get("machine", ""), answer.composition.interval_of or memory
    path = archive.machines_with("predictions/networks.csv", imported=True).get(name)
    rows = [row for row in (_networks_of(path) if path else ()) if (row["mode"], row["memory"]) == (mode, heap)]
    if not rows:
        return Quote({}, f"no network with the {ALLOCATORS[memory]} was held out on the machine of this model")
    sizes = sorted({row["batch_size"] for row in rows})
    nearest = min(sizes, key=lambda size: abs(math.log(size / work.batch_size)))
    other_heap = "" if heap == memory else (f"no network was measured with the {ALLOCATORS[memory]}, its interval is that "
                                            f"with the {ALLOCATORS[heap]}; ")
    about = ("not of this machine: " if predictor.origin else "") + other_heap + \
        ("forward and backward of " if mode == "train" else "")
    return _of_kind([row for row in rows if row["batch_size"] == nearest], work, about)


@files.until_changed
def _networks_of(path: Path) -> list[Row]:
    """Return the scores of a machine's networks (predictions/networks.csv in its folder)."""
    folder = path.parents[1]
    return [row for row in errors.of_its_networks(folder.name, folder) if row["what"] == NETWORKS]


def _of_calibration(answer) -> Quote:
    """Return the errors of the networks that a calibration measured, each left out."""
    fitted, heap = answer.composition, answer.heap
    if not fitted.networks or not fitted.scores:
        with_heap = f" with the {ALLOCATORS[heap]}" if fitted.networks else ""
        return Quote({}, f"no network was measured{with_heap} when this machine was calibrated")
    return _quoted({**fitted.scores, "device": answer.predictor.device, "kind": ALL, "mode": answer.work.mode,
                    "condition": errors.condition_of_cpu(heap), "left_out": "each network of the calibration",
                    "source": "measured here"})
