"""A question about a network, and what is captured of the network to answer it."""

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd

from lib.errors import InputError, choices
from lib.measure.networks import allocator
from lib.predict import steps
from lib.predict.cards import answers
from lib.predict.cards import rows as card_rows
from lib.predict.cards.features import Condition
from lib.predict.networks import gains, work
from lib.predict.networks.composition import Estimate
from lib.predict.networks.step import Step
from lib.predict.networks.work import Work
from lib.predict.registry import Predictor
from lib.predict.trust import quote
from lib.work import dtypes, networks
from lib.work.graph import capture, ops

MOST_BORROWED = 0.5  # share of the time answered by other devices above which an answer is zero-shot
_LEAST_BATCH = 2  # a single sample runs other kernels than a batch: no line goes through it
_DTYPES = ("fp32", *dtypes.AUTOCAST)
_IMAGES = 4  # dimensions of a batch of images
_COUNTS = ("calls", "backward_calls", "covered")  # columns of work that do not grow with the batch


@dataclass(frozen=True)
class Query:
    """A network, its batch and mode, element type, layout of images, and whether torch.compile compiles it."""

    model: str
    batch_size: int = 0
    input_shape: str = ""
    mode: str = "infer"
    dtype: str = "fp32"
    layout: str = "contiguous"
    compiled: bool = False

    def network(self, batch_size: int = 0) -> networks.Network:
        """Return the network with its batch; InputError if it cannot be built."""
        return networks.network(self.model, batch_size or self.batch_size, self.input_shape)


class CapturedQuery:
    """A query and the captures of its network: one per device type and batch size, reused by every answer.

    ``shipped``: use only profiles of the reference. Raises InputError for an unknown element type or mode, and for a network
    that cannot be built.
    """

    def __init__(self, query: Query, shipped: bool = False):
        if query.dtype not in _DTYPES:
            raise InputError(f"no element type {query.dtype!r}; there are: {choices(_DTYPES)}")
        if query.mode not in ops.MODES:
            raise InputError(f"no mode {query.mode!r}; there are: {choices(ops.MODES)}")
        network = query.network()
        self.query, self.shipped, self.batch_size = query, shipped, network.shape[0]
        self._works: dict[tuple[int, str], Work] = {}
        self._interpolations: dict[tuple[int, str], Work] = {}
        self._module = cache(lambda: capture.prepared(network))
        self._rows = cache(lambda: card_rows.of_network(network, self._module()))
        in_fp32 = cache(lambda: CapturedQuery(replace(query, dtype="fp32", layout="contiguous"), shipped))
        self._in_fp32 = cache(lambda batch_size: in_fp32().under(batch_size=batch_size))

    def under(self, **changes) -> "CapturedQuery":
        """Return the query with another batch size, layout or compiled; both share their captures."""
        other = copy(self)
        other.query, other._interpolations = replace(self.query, **changes), {}
        other.batch_size = other.query.network().shape[0]
        return other

    def work(self, batch_size: int = 0, device_type: str = "cpu") -> Work:
        """Return the work at a batch size (0: the query's), captured as a device type (cpu, cuda) runs it."""
        key = batch_size or self.batch_size, device_type
        if key not in self._works:
            self._works[key] = work.captured(self.query.network(key[0]), self.query.mode, dtypes.torch_name(self.query.dtype),
                                              device=device_type, ready=self._module())
        return self._works[key]

    def scaled(self, batch_size: int, device_type: str = "cpu") -> Work:
        """Return the work at another batch size, interpolated between two captures: sizes are linear in the batch.

        A network is captured at the batch size itself where the two captures have different operators.
        """
        if (batch_size, device_type) not in self._interpolations:
            self._interpolations[batch_size, device_type] = self._interpolated(batch_size, device_type)
        return self._interpolations[batch_size, device_type]

    def _interpolated(self, batch_size: int, device_type: str) -> Work:
        base = max(_LEAST_BATCH, self.batch_size)
        if batch_size in (self.batch_size, base, 2 * base):
            return self.work(batch_size, device_type)
        first, second = (self.work(size, device_type) for size in (base, 2 * base))
        share = (batch_size - base) / base
        try:
            plan = first.plan.towards(second.plan, share)
        except ValueError:
            plan = None
        if plan is None or list(first.table["op"]) != list(second.table["op"]):
            return self.work(batch_size, device_type)

        def line(start, end):
            return start + share * (end - start)

        sizes = [name for name in first.table.select_dtypes("number") if name not in _COUNTS]
        table = first.table.assign(**{name: line(first.table[name], second.table[name]) for name in sizes})
        totals = {name: max(0.0, line(getattr(first, name), getattr(second, name)))
                  for name in ("weight_bytes", "input_values")}
        replay = allocator.replayed(plan) if device_type == "cpu" else None
        return replace(first, table=table, batch_size=batch_size, plan=plan, replay=replay, **totals)

    def predict(self, predictor: Predictor, network: Work | None = None, memory: str = "default") -> Estimate | Step:
        """Predict a forward pass, or a training step with all of its parts, on a device.

        ``network``: the work at another batch size than the query's; ``memory``: see ``Predictor.estimate``.
        """
        network = network or self.work(device_type=predictor.device_type)
        passes = self._by_gain(predictor, network, memory) if self.uses_gain(predictor) else \
            self._of_whole_networks(predictor, network)
        if self.query.mode == "infer":
            return passes or predictor.estimate(network, memory)
        return steps.assembled(predictor, network, steps.loading(self.query.model, network),
                               passes or steps.passes_in_a_loop(predictor, network), steps.costs_of(predictor, self.shipped))

    def quote(self, predictor: Predictor, network: Work, passes: Estimate) -> quote.Quote:
        """Return the held-out errors that are quoted beside the answer of a device."""
        quoted = quote.quote(predictor, network, passes, "default" if self.query.mode == "infer" else "kept")
        gain = passes.provenance.gain
        return quote.Quote({}, f"in fp32, default layout: {quoted.words}; {gain.evidence}") if gain else quoted

    # Cards whose whole networks were measured

    @property
    def rows(self) -> pd.DataFrame:
        """Give the rows of work that models of whole networks take, see ``cards.rows``."""
        return self._rows()

    def condition(self, predictor: Predictor) -> Condition | None:
        """Return the measured condition of whole networks that is most like the query; None where there is none."""
        query = self.query
        if predictor.card is None or len(query.network().shape) != _IMAGES:
            return None
        return answers.condition_of(predictor.card, query.dtype, query.mode, query.layout, query.compiled)

    def _of_whole_networks(self, predictor: Predictor, network: Work) -> Estimate | None:
        """Predict passes by the card's model of whole networks, if one was learned under the query's condition.

        Where only other cards ran so, the card's own kernels come first if they answer for most of the time.
        """
        condition = self.condition(predictor)
        if condition is None:
            return None
        kernels = cache(lambda: predictor.estimate(network))
        plain = (self.query.layout, self.query.compiled) == ("contiguous", False)
        of_other_cards = predictor.card.under(condition).conditions[condition].basis == "others"
        if plain and of_other_cards and kernels().provenance.borrowed <= MOST_BORROWED:
            return None
        answer = answers.answer(predictor.card, card_rows.of_passes(self.rows), network.batch_size, condition)
        unbounded = network.uncounted or (not network.table["covered"].all() and math.isinf(kernels().high_ms))
        return replace(answer, high_ms=math.inf if unbounded else answer.high_ms,
                       predict_operators=lambda: kernels().operators)

    # A CPU in another element type or layout

    def uses_gain(self, predictor: Predictor) -> bool:
        """Return whether this CPU's answer is its fp32 time divided by the gain of an element type or layout."""
        is_default = (self.query.dtype, self.query.layout) == ("fp32", "contiguous")
        has_fp32 = predictor.device == "cpu" and predictor.model.facts["dtype"] == "fp32"
        return has_fp32 and not is_default and not self.query.compiled

    def in_fp32(self) -> "CapturedQuery":
        """Return the query in fp32 and the default layout, at the same batch size."""
        return self if self.query.dtype == "fp32" else self._in_fp32(self.batch_size)

    def gain(self, predictor: Predictor, dtype: str, layout: str) -> gains.Answer:
        """Return the gain of an element type and layout over fp32 in the default layout on this CPU."""
        return gains.answer(self.in_fp32().work(), predictor.model, dtype, layout)

    def _by_gain(self, predictor: Predictor, network: Work, memory: str) -> Estimate:
        in_fp32 = self.in_fp32().scaled(network.batch_size)
        base = predictor.estimate(in_fp32, memory) if self.query.mode == "infer" else steps.passes_in_a_loop(predictor, in_fp32)
        answer = gains.answer(in_fp32, predictor.model, self.query.dtype, self.query.layout)
        predicted_ms, gain_half = base.predicted_ms / answer.gain, math.log(answer.high / answer.gain)
        below, above = (math.exp(math.hypot(math.log(end / base.predicted_ms), gain_half))
                        for end in (base.low_ms, base.high_ms))
        return replace(base, predicted_ms=predicted_ms, low_ms=predicted_ms / below, high_ms=predicted_ms * above,
                       provenance=replace(base.provenance, gain=answer))
