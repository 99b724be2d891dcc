"""Advice on GPUs that tests ask for, and networks that are drawn at random for the form of GPUs."""

import numpy as np
import pandas as pd
import torch

from lib.config.definitions import load_devices
from lib.predict.advice import suggestions
from lib.predict.gpu import fit, form, rows
from lib.predict.gpu.fit import Case
from lib.predict.gpu.levels import Condition, chip_of, levels_of
from tests import advice_on

EAGER = Condition("infer", "amp_fp16", "nchw", False)


def advised(device, name="resnet50", batch_size=256, dtype="fp16", **query):
    """Return the advice on one card, or on several."""
    return advice_on(device, name, batch_size, dtype=dtype, **query)


def answered(device, *query, **more):
    """Return the answer for one card."""
    return advised(device, *query, **more).table.iloc[0]


def change(advice, what):
    """Return one change that is suggested."""
    (found,) = (one for one in suggestions.suggestions(advice) if one.what == what)
    return found


def weights(**more):
    """Return the usual weights with something added to some."""
    return form.usual() + form.flat(**{"computing": 0.0, "moving": 0.0, "overheads": 0.0, **more})


def synthetic(count, seed):
    """Return rows of networks of three kinds of work, drawn at random."""
    generator, frames = np.random.default_rng(seed), []
    for _ in range(count):
        sizes = generator.uniform(1e6, 1e8, 3)
        frame = pd.DataFrame({"calls": generator.integers(1, 20, 3), "scales": 1, "launches": 1,
                              "flops": [sizes[0] * 400, 0, 0],
                              "read": sizes, "written": sizes, "read_elements": sizes / 2, "written_elements": sizes / 2,
                              "m": [4096, 0, 0], "n": [512, 0, 0], "k": [512, 0, 0]})
        frames.append(frame.reindex(columns=list(rows.COLUMNS)).fillna(0.0).astype(float).assign(
            kind=pd.Categorical(["linear", "elementwise", "batch_norm"], rows.KERNEL_KINDS),
            stage=pd.Categorical(["always", "eager", "eager"], rows.STAGES)))
    return frames


def case_of(device, true, frames, families=7, more=0.0, condition=EAGER):
    """Return networks that take on a card what ``true`` weights say, and ``more`` in log time."""
    vendor = load_devices()[device]
    table = pd.DataFrame({"network": [f"n{number}" for number in range(len(frames))], "rows": frames, "times": 32.0,
                          "family": [f"f{number % families}" for number in range(len(frames))], "latency_ms": 1.0,
                          "batch_size": 64})
    case = Case(table, device, f"timm, {device}", condition, chip_of(vendor, condition), levels_of(vendor, condition))
    log_ms = form.log_ms(case.terms, torch.as_tensor(true)[None]).numpy() + more
    return Case(table.assign(latency_ms=np.exp(log_ms)), device, case.source, condition, case.chip, case.levels)


def predicted_ms(fitted, case):
    """Return what levels predict of a case."""
    return fit.predicted_ms(fitted, case, case.levels)
