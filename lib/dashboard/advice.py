"""The predicted seconds of the steps and evaluations of a fine-tune; for a process of its own."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lib.config.base import build
from lib.errors import InputError


def advise(config: Mapping[str, Any],
           processors: Sequence[tuple[str, str]]) -> dict[str, tuple[float, str]]:
    """Return by processor the seconds of training steps and evaluated batches, and their source.

    ``processors`` are (``cpu`` or ``cuda``, name); those without a cost model are left out. A step
    includes loader, copy, forward, backward and optimizer; starting and saving are not included.
    Raises InputError where data or network are missing here.
    """
    from lib.finetune import data, models
    from lib.finetune.config import TrainConfig
    from lib.predict import registry

    checked = build(TrainConfig, {**config, "load_pretrained": False}, "config")
    names, facts = data.names_and_facts(checked)
    network = models.network(checked, facts)
    opened = data.open_data(checked, network.inputs, names)
    batches = {split: math.ceil(len(indices) / checked.batch_size)
               for split, indices in opened.indices.items()}
    counts = {"train": batches["train"] * checked.epochs,
              "infer": batches["val"] * checked.epochs + batches.get("test", 0)}
    kinds = sorted({kind for kind, _ in processors})
    loops = {kind: models.captured(checked, device_type=kind) for kind in kinds}
    advised = {}
    for kind, name in processors:
        try:
            vendor = "cpu" if kind == "cpu" else registry.vendor_of(name)
            predictor = registry.predictor(vendor, checked.precision)
        except InputError:
            continue
        if predictor is None:  # a CPU without a model of this element type
            continue
        steps = {mode: loops[kind].step(predictor, mode) for mode in counts}
        ms = {mode: step.predicted_ms for mode, step in steps.items()}
        words = (f"{counts['train']:,} steps of {ms['train']:,.3g} ms, {counts['infer']:,} "
                 f"evaluated batches of {ms['infer']:,.3g} ms, {predictor.source(steps['train'].passes)}")
        advised[name] = sum(counts[mode] * ms[mode] for mode in counts) / 1e3, words
    return advised
