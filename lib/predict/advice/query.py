"""A question about a network, and what is captured of the network to answer it."""

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd

from lib.errors import InputError, choices
from lib.measure.networks import allocator
from lib.predict import steps
from lib.predict.composed import answers
from lib.predict.composed import rows as composed_rows
from lib.predict.composed.features import Condition
from lib.predict.gains import answers as gains
from lib.predict.networks import work
from lib.predict.networks.composition import Estimate, Provenance
from lib.predict.networks.step import Step
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.predict.trust import quote
from lib.work import dtypes, networks
from lib.work.graph import capture, ops

MOST_BORROWED = 0.5  # of the time borrowed from other devices, and an answer is zero-shot
_BATCH = 2  # samples at least of a batch by which others are judged
_DTYPES = ("fp32", *dtypes.AUTOCAST)


@dataclass(frozen=True)
class Query:
    """A network, its batch and mode, the element type, the layout of images, and whether torch.compile compiles it."""

    model: str
    batch_size: int = 0
    input_shape: str = ""
    mode: str = "infer"
    dtype: str = "fp32"
    layout: str = "contiguous"
    compiled: bool = False

    def network(self, batch_size: int = 0) -> networks.Network:
        """Return the network with its batch; InputError for what cannot be built."""
        return networks.network(self.model, batch_size or self.batch_size, self.input_shape)


class CapturedQuery:
    """One query, captured once a device type (and once more at another batch size when several are compared).

    ``shipped``: what profiles gave is that of the reference alone.
    """

    def __init__(self, query: Query, shipped: bool = False):
        if query.dtype not in _DTYPES:
            raise InputError(f"no element type {query.dtype!r}; there are: {choices(_DTYPES)}")
        if query.mode not in ops.MODES:
            raise InputError(f"no mode {query.mode!r}; there are: {choices(ops.MODES)}")
        self.query, self.shipped, self._works, self._scaled = query, shipped, {}, {}
        network = query.network()
        self.batch_size = network.shape[0]
        self._built = cache(lambda: capture.prepared(network))
        self._ready = cache(lambda channels_last: capture.prepared(network, True, self._built()) if channels_last
                            else self._built())
        self._rows = cache(lambda: composed_rows.of_network(network, self._built()))
        self._of_fp32 = cache(lambda: CapturedQuery(replace(query, dtype="fp32", layout="contiguous"), shipped))
        self._usuals: dict[int, CapturedQuery] = {}

    def work(self, batch_size: int = 0, channels_last: bool = False, device_type: str = "cpu") -> Work:
        """Return the work at a batch size (0: the query's own), captured as it runs on a device type: cpu or cuda."""
        key = (batch_size or self.batch_size, channels_last, device_type)
        if key not in self._works:
            network = self.query.network(key[0])
            self._works[key] = work.captured(network, self.query.mode, dtypes.torch_name(self.query.dtype), channels_last,
                                              device_type, self._ready(channels_last))
        return self._works[key]

    def predicted(self, predictor: Predictor, network: Work | None = None, memory: str = "default") -> Estimate | Step:
        """Predict what the query asks for on a device: a forward pass, or a training step with all of its parts.

        ``network`` is the work where it is not that of the query's own batch size, ``memory`` what a pass's process does with
        freed memory, see ``Predictor.estimate``.
        """
        network = network or self.work(device_type=predictor.device_type)
        learned = self._by_gain(predictor, network, memory) if self.is_by_gain(predictor) else \
            self._of_whole_networks(predictor, network)
        if self.query.mode == "infer":
            return learned or predictor.estimate(network, memory)
        return steps.assembled(predictor, network, steps.loading(self.query.model, network),
                               learned or steps.passes_in_a_loop(predictor, network), steps.costs_of(predictor, self.shipped))

    @property
    def rows(self) -> pd.DataFrame:
        """Give the rows of work that composed models of cards take, see ``composed.rows``."""
        return self._rows()

    def under(self, **changes) -> "CapturedQuery":
        """Return the query with another batch size, layout or compiled; both share what is captured."""
        other = copy(self)
        other.query, other._scaled = replace(self.query, **changes), {}
        other.batch_size = other.query.network().shape[0]
        return other

    def condition(self, predictor: Predictor, **changes) -> Condition | None:
        """Return what was learned from whole networks that is like the query, with ``changes``; None where nothing was."""
        query = replace(self.query, **changes)
        if predictor.composed is None or len(query.network().shape) != 4:  # noqa: PLR2004 - images: batch, channels, height, width
            return None
        return answers.condition_of(predictor.composed, query.dtype, query.mode, query.layout, query.compiled)

    def quote(self, predictor: Predictor, network: Work, passes: Estimate) -> quote.Quote:
        """Return the errors on held-out networks or operators that are quoted beside the answer for a device."""
        memory = "default" if self.query.mode == "infer" else "kept"
        quoted = quote.quote(predictor, network, passes, memory)
        gain = passes.provenance.gain
        return quote.Quote({}, f"in fp32 as laid out by default: {quoted.words}; {gain.evidence}") if gain else quoted

    def _of_whole_networks(self, predictor: Predictor, network: Work) -> Estimate | None:
        """Predict passes by the composed model of a card, where one was learned of whole networks run as the query says.

        What other cards say stands behind kernels of the card's own, where most of the time is theirs.
        """
        condition = self.condition(predictor)
        if condition is None:
            return None
        kernels = cache(lambda: predictor.estimate(network))
        plain = (self.query.layout, self.query.compiled) == ("contiguous", False)
        shared = predictor.composed.under(condition).conditions[condition].basis == "others"
        if plain and shared and kernels().provenance.borrowed <= MOST_BORROWED:
            return None
        answer = answers.answer(predictor.composed, composed_rows.of_passes(self.rows), network.batch_size, condition)
        unbounded = network.uncounted or (not network.table["covered"].all() and math.isinf(kernels().high_ms))
        return Estimate(answer.predicted_ms, answer.low_ms, math.inf if unbounded else answer.high_ms, float(answer.outside),
                        Provenance(answer.origins, condition=condition), lambda: kernels().operators)

    def is_by_gain(self, predictor: Predictor) -> bool:
        """Return whether this machine's CPU answers by what the query's element type or layout gains over the usual ones."""
        usual = (self.query.dtype, self.query.layout) == ("fp32", "contiguous")
        of_fp32 = predictor.device == "cpu" and predictor.model.facts["dtype"] == "fp32"
        return of_fp32 and not usual and not self.query.compiled

    def usual(self) -> "CapturedQuery":
        """Return the query in fp32, of the same batch; its work is laid out by default."""
        if self.query.dtype == "fp32":
            return self
        if self.batch_size not in self._usuals:
            self._usuals[self.batch_size] = self._of_fp32().under(batch_size=self.batch_size)
        return self._usuals[self.batch_size]

    def gain(self, predictor: Predictor, dtype: str, layout: str) -> gains.Answer:
        """Return what an element type and layout gain over the usual ones on this machine's CPU, see ``gains.answer``."""
        return gains.answer(self.usual().work(), predictor.model, dtype, layout)

    def _by_gain(self, predictor: Predictor, network: Work, memory: str) -> Estimate:
        """Predict passes of a CPU from those in fp32 as they are laid out by default, and what the query's way gains."""
        usual = self.usual().scaled(network.batch_size)
        base = predictor.estimate(usual, memory) if self.query.mode == "infer" else steps.passes_in_a_loop(predictor, usual)
        answer = gains.answer(usual, predictor.model, self.query.dtype, self.query.layout)
        predicted_ms, of_gain = base.predicted_ms / answer.gain, math.log(answer.high / answer.gain)
        below, above = (math.exp(math.hypot(math.log(end / base.predicted_ms), of_gain)) for end in (base.low_ms, base.high_ms))
        return replace(base, predicted_ms=predicted_ms, low_ms=predicted_ms / below, high_ms=predicted_ms * above,
                       provenance=replace(base.provenance, gain=answer))

    def scaled(self, batch_size: int, device_type: str = "cpu") -> Work:
        """Return the work at another batch size, on the line through two that were captured: every size is linear in it.

        A single sample is on no line: convolutions take other kernels for it, and other memory beside their outputs.

        Where the two are not the same operators (its control flow differs), it is captured itself.
        """
        if (batch_size, device_type) not in self._scaled:
            self._scaled[batch_size, device_type] = self._on_the_line(batch_size, device_type)
        return self._scaled[batch_size, device_type]

    def _on_the_line(self, batch_size: int, device_type: str) -> Work:
        one = max(_BATCH, self.batch_size)
        if batch_size in (self.batch_size, one, 2 * one):
            return self.work(batch_size, device_type=device_type)
        first, other = (self.work(size, device_type=device_type) for size in (one, 2 * one))
        if list(first.table["op"]) != list(other.table["op"]):
            return self.work(batch_size, device_type=device_type)
        share = (batch_size - one) / one
        try:
            plan = first.plan.towards(other.plan, share)
        except ValueError:
            return self.work(batch_size, device_type=device_type)
        table = first.table.copy()
        for name in table:
            if name not in ("calls", "backward_calls", "covered") and pd.api.types.is_numeric_dtype(table[name]):
                table[name] = first.table[name] + share * (other.table[name] - first.table[name])
        line = {name: max(0.0, getattr(first, name) + share * (getattr(other, name) - getattr(first, name)))
                for name in ("weight_bytes", "input_values")}
        replay = allocator.replayed(plan) if device_type == "cpu" else None
        return replace(first, table=table, batch_size=batch_size, plan=plan, replay=replay, **line)
