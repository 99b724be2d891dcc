"""What the cost models say of a fine-tune: its steps, and how long one takes on a processor. Called in a process of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from lib.config.base import build
from lib.errors import InputError


def advise(config: Mapping[str, Any], processors: Sequence[tuple[str, str]]) -> tuple[int, dict[str, tuple[float, str]]]:
    """Return the steps of a config, and by processor the seconds of a step and on what they rest.

    ``processors`` are (``cpu`` or ``cuda``, the name that its driver gives); one that no model is of is left out. A network is
    built from its config, without weights. Raises InputError where data or network are not to be had here.
    """
    from lib.finetune import data, networks
    from lib.finetune.config import TrainConfig
    from lib.predict import advise as advice
    from lib.predict.networks import work
    from lib.work import dtypes
    from lib.work.networks import Network

    checked = build(TrainConfig, {**config, "load_pretrained": False}, "config")
    names, facts = data.names_and_facts(checked)
    network = networks.network(checked, facts)
    opened = data.open_data(checked, network.inputs, names)
    steps = data.Batches(opened.indices["train"], checked.batch_size).batches * checked.epochs
    sample = (network.inputs.channels, *[network.inputs.size] * facts.spatial)
    built = Network(network.name, lambda: network.build(opened.labels), (checked.batch_size, *sample))
    captured = work.captured(built, "train", dtypes.torch_name(checked.precision), checked.channels_last)
    times = {}
    for kind, name in processors:
        if predictor := _predictor(kind, name, checked.precision):
            estimate = predictor.estimate(captured)
            times[name] = (estimate.predicted_ms / 1e3, advice.source_of(predictor, estimate))
    return steps, times


def _predictor(kind: str, name: str, dtype: str):
    """Return what predicts a processor, None where there is no model of it or of the element type."""
    from lib.predict import registry

    try:
        return registry.predictor("cpu" if kind == "cpu" else registry.vendor_of(name), dtype)
    except InputError:
        return None
