"""The errors quoted beside an answer: those of held-out networks most like it, or of the operators that take its time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lib import files
from lib.measure import archive
from lib.predict.networks import architectures
from lib.predict.networks.work import Work
from lib.predict.transfer_cpu import CALIBRATED
from lib.predict.trust import errors, scoreboard
from lib.predict.trust.errors import ALL, ALLOCATORS, NETWORKS, Row

NUMBERS = {name: errors.SCORES[name] for name in ("mape", "median", "bias", "cover", "n")}
COLUMNS = (*(f"held_out_{name}" for name in NUMBERS.values()), "held_out")
ON_CARD = "networks measured on this card, left out of the model"  # begins words about the errors of such networks
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
        return dict(zip(COLUMNS, (*(self.numbers.get(name, math.nan) for name in NUMBERS), self.words), strict=True))


def quote(answer) -> Quote:
    """Return what was held out that is most like an answer (``advice.query.Answer``) to a question about a network."""
    gain, of_cpu = answer.passes.provenance.gain, _of_calibration if CALIBRATED in answer.predictor.model.facts else _of_cpu
    quoted = _of_card(answer) if answer.passes.provenance.condition else of_cpu(answer) \
        if answer.predictor.device_type == "cpu" else _of_operators(answer)
    if call := answer.passes.provenance.call:
        quoted = Quote(quoted.numbers, f"{quoted.words}; {call}")
    if runtime := answer.passes.provenance.runtime:
        return Quote({}, f"eager in fp32: {quoted.words}; {runtime.evidence}")
    if gain:
        return Quote({}, f"in fp32, default layout: {quoted.words}; {gain.evidence}")
    config = answer.config
    if config.gpus > 1:  # outsiders' scores are of one GPU
        return quoted
    outsiders = scoreboard.of_networks(answer.predictor.kind, config.mode, scoreboard.condition_of(config))
    return Quote(outsiders, f"{ON_CARD}: {_errors(outsiders)} ({outsiders['sources']}). The model's own: {quoted.words}") \
        if outsiders else quoted


def _of_card(answer) -> Quote:
    condition = answer.passes.provenance.condition
    card = answer.predictor.card.under(condition)
    fitted = card.conditions[condition]
    about = "it learned from no network on this card; " if fitted.basis == "others" else ""
    if fitted.corrected_since:
        about += f"corrected since by {fitted.corrected_since} of its networks; "
    return _of_kind(errors.scores_of_card(card, condition), answer.work, about)


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


def _of_operators(answer) -> Quote:
    """Return the mean errors of the model's parts, by their shares of the time: it learned from no network on the device."""
    table, model = answer.passes.operators, answer.predictor.model
    times = table["cost_ms"].groupby(table["part"]).sum().sort_values(ascending=False)
    shares = times / times.sum()
    rows = {name: errors.of_part(model, name) for name in shares.index if model.parts[name].scores}
    text = []
    for name, share in shares.head(_PARTS)[lambda shares: shares > _LITTLE].items():
        by, row = model.parts[name].origin, rows.get(name)
        scored = f"MAPE {row['mape']:.1f} %, n {row['n']:,.0f}" if row else "nothing measured"
        text.append(f"{name} {share:.0%}{f' (by {by})' if by else ''}: {scored}")
    words = f"it learned from no network on this card; of its operators, by share of the time: {'; '.join(text)}"
    if not rows:
        return Quote({}, words)
    weights = shares[list(rows)] / shares[list(rows)].sum()
    means = {name: float(sum(weights[part] * row.get(name, math.nan) for part, row in rows.items()))
             for name in NUMBERS if name != "n"}
    left_out = "; ".join(dict.fromkeys(f"{row['left_out']} ({row['source']})" for row in rows.values()))
    return Quote({**means, "n": int(sum(row["n"] for row in rows.values()))}, f"{words}; left out: {left_out}")
