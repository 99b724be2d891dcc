"""The time of a network by its card's model of whole networks."""

from dataclasses import replace

import pandas as pd

from lib.errors import choices
from lib.predict import boards
from lib.predict.cards import card_errors, card_model, features, kernel_sum
from lib.predict.cards.card_model import CardModel
from lib.predict.cards.features import PASSES, Condition, Terms, version
from lib.predict.cards.operator_kinds import COMPUTING, KERNEL_KINDS
from lib.predict.networks import architectures, composition, sums
from lib.predict.networks.composition import ZEROING, Estimate, Provenance
from lib.predict.networks.work import Work
from lib.work.run_config import RunConfig

_PRECISIONS = {"fp16": ("amp_fp16", "amp_bf16"), "bf16": ("amp_bf16", "amp_fp16")}  # cards compute both at one rate
CASTS = "cast"  # kind of kernels and launches
LAYOUTS = {"contiguous": "nchw", "channels_last": "nhwc"}


def condition_of(card: CardModel, config: RunConfig, torch: str = "") -> Condition | None:
    """Return the learned condition that a run is most like, of the newest torch or the one given; None: none was learned.

    If the card has no such condition, that of the shared model of all cards is taken.
    """
    precisions, wanted = _PRECISIONS.get(config.dtype, ()), (config.mode, config.compiled, LAYOUTS[config.layout])
    candidates = [condition for condition in card.conditions
                  if (condition.mode, condition.compiled, condition.layout) == wanted
                  and condition.precision in precisions and torch in ("", condition.torch)]
    if not candidates and card.shared_model:
        return condition_of(card.shared_model, config, torch)
    return max(candidates, default=None,
               key=lambda condition: (-precisions.index(condition.precision), version(condition.torch)))


def answer(card: CardModel, rows: pd.DataFrame, batch_size: int, condition: Condition, work: Work | None = None) -> Estimate:
    """Predict a network (``rows.of_network``) at a batch size under a learned condition; InputError for another.

    ``work``: has the launches of an eager network, which labelled rates need.
    """
    card = card.under(condition)
    fitted = card.conditions[condition]
    terms = features.terms(rows, float(batch_size), card.chip, condition)
    half = card_errors.half_of(card.device, condition, architectures.of_rows(rows)) if fitted.basis == "many" else None
    other_cards = fitted.basis == "others" and (choices(card_model.measured_under(condition)) or "other cards")
    origins = {f"networks on {other_cards}": 1.0} if other_cards else {}
    uses_labelled_rates = other_cards and work and not condition.compiled and not fitted.corrected
    parts = _card_pass_parts(fitted, terms, batch_size, condition, work, card) if uses_labelled_rates else None
    launches_ms = None
    if parts:
        rates, usual_ms = boards.rates(card.device).of_passes
        used = parts.without(ZEROING)
        times, launches_ms = used.predict(rates, usual_ms), used.launching_ms(usual_ms)
    else:
        times = fitted.predict(terms, batch_size, half)
    return Estimate(*times, float(fitted.outside(batch_size)), Provenance(origins, condition), parts=parts,
                    launches_ms=launches_ms)


def _card_pass_parts(fitted: kernel_sum.FittedWeights, terms: Terms, batch_size: int, condition: Condition, work: Work,
                     card: CardModel) -> sums.Parts:
    """Return the kernels and launches of a pass, casts apart: a network that is in 16 bits as a whole has none."""
    kinds_ms, start = fitted.kinds_ms(terms), KERNEL_KINDS.index(CASTS)
    casts = float(terms.calls[terms.edges[start]:terms.edges[start + 1]].sum())
    forward = casts / PASSES if condition.mode == "train" else casts
    zeroing_ms = composition.zeroing_ms(work, card.chip.item, card.chip.bytes_per_ms / 1e6)
    kernels_ms = {CASTS: kinds_ms.pop(CASTS), ZEROING: zeroing_ms}
    for kind, ms in kinds_ms.items():
        name = f"16 bits {kind if kind in COMPUTING else 'memory'} {condition.mode}"
        kernels_ms[name] = kernels_ms.get(name, 0.0) + ms
    launches = composition.launches(work)
    launches["forward"] -= forward
    launches["backward"] -= (cast_backward := forward * (condition.mode == "train"))
    return sums.Parts(kernels_ms, {**launches, CASTS: forward + cast_backward}, fitted.half * (1 + fitted.outside(batch_size)))


def gain(card: CardModel, rows: pd.DataFrame, batch_size: int, before: RunConfig,
         after: RunConfig) -> tuple[float, str] | None:
    """Return how many times as fast a network is ``after`` as ``before``, and how right that is.

    Both have the same torch, the newest that was learned both ways, and both come from the card's model or both from the shared
    one. None without such a pair.
    """
    for source in filter(None, (replace(card, shared_model=None), card.shared_model)):
        releases = sorted({condition.torch for condition in source.conditions}, key=version, reverse=True)
        for release in releases:
            pair = [condition_of(source, config, release) for config in (before, after)]
            if all(pair):
                first, second = (answer(source, rows, batch_size, condition) for condition in pair)
                return first.predicted_ms / second.predicted_ms, _how_right(source, *pair)
    return None


def _how_right(card: CardModel, before: Condition, after: Condition) -> str:
    """Describe the error of such gains with families left out, or with the card left out too if it has no data."""
    fitted = [card.conditions[condition] for condition in (before, after)]
    of_others = any(weights.basis == "others" for weights in fitted)
    of_card = None if of_others else card_errors.of_change(card.device, before, after)
    scored = of_card or card_errors.of_change(card_model.ANY, before, after)
    ways = " and ".join(weights.scored or condition.name for weights, condition in zip(fitted, (before, after), strict=True))
    text = f"learned from networks that ran as {ways}"
    if scored is None:
        return f"{text}; none were held out"
    left_out = "families" if of_card else "families and the card"
    corrected = max(weights.corrected for weights in fitted)  # gains of a card that its user corrected are not scored again
    since = f" (corrected since by {corrected} of its networks)" if corrected else ""
    return f"{text}; with {left_out} left out {card_errors.change_words(scored)}{since}"
