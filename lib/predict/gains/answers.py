"""What another layout or element type is predicted to gain a network on this machine's CPU, and on what evidence."""

from dataclasses import dataclass

from lib.errors import InputError, choices
from lib.measure import machine
from lib.predict.gains import model, model_file
from lib.predict.gains.model import Way
from lib.predict.networks import composition
from lib.predict.networks.work import Work
from lib.predict.operators.cost_model import CostModel


@dataclass(frozen=True)
class Answer:
    """By how many times a network is predicted to be faster, at least and at most in 90 % of cases, and the evidence."""

    gain: float
    low: float
    high: float
    evidence: str


def serves(dtype: str) -> bool:
    """Return whether networks tell what an element type gains on this machine's CPU."""
    shipped = model_file.shipped()
    computed_so = dtype != "bf16" or machine.bf16_instructions() == shipped.bf16_instructions
    return computed_so and any(way.dtype == dtype for way in shipped.ways)


def answer(work: Work, cost_model: CostModel, dtype: str, layout: str) -> Answer:
    """Predict the gain of an element type and layout for the work of a network in fp32 as it is laid out by default.

    Raises InputError for what no networks were measured in, and for bf16 on a CPU that computes it otherwise than theirs.
    """
    shipped, way = model_file.shipped(), Way(work.mode, dtype, layout)
    if way not in shipped.ways:
        raise InputError(f"no networks were measured on a CPU in {dtype} {layout}; there are: "
                         f"{choices(f'{one.dtype} {one.layout}' for one in shipped.ways if one.mode == work.mode)}")
    own = machine.bf16_instructions()
    if not serves(dtype):
        raise InputError(f"networks were measured in bf16 on a CPU with {choices(shipped.bf16_instructions)}, and this one has "
                         f"{choices(own) or 'neither, where bf16 is computed by other instructions and is often slower'}")
    learned = shipped.ways[way]
    gain, low, high = learned.of(model.terms(work, composition.predicted_operators(work, cost_model)))
    scores = learned.scores
    evidence = (f"{dtype} {layout} gains {gain:.2f} ({low:.2f} to {high:.2f}); "
                f"from {learned.networks} networks that ran both ways on {shipped.machine} with "
                f"{shipped.threads} threads; of families left out the factor errs by {scores['mape']:.0f} % (a constant by "
                f"{scores['constant_mape']:.0f} %), and {scores['sign_large']:.0f} % of gains above 5 % have the right sign")
    return Answer(gain, low, high, evidence)
