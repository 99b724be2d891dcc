"""Networks of Hugging Face's transformers, made from a local config alone: no weights, no code of others, no network."""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from torch import nn

from lib.errors import InputError, choices
from lib.work import user_code
from lib.work.building import inputs
from lib.work.building.inputs import FLOAT, Input

PREFIX = "hf"
_CONFIG, _HUB_NAME = "config.json", r"\w[\w.-]*(/[\w.-]+)?"
_TOKENS, _SAMPLES, _IMAGE = 128, 16_000, 224  # of a sample where nothing is asked for: tokens, one second of sound, pixels
_POSITIONS = ("max_position_embeddings", "n_positions")
_IMAGES_AS_TOKENS = ("image_token_id", "image_token_index", "image_token")  # pictures lie between the words, by value
_TOKEN_INPUTS = ("input_ids", "decoder_input_ids")
_UNSTATED = ""  # element type
_MOST_LAYERS = 1000  # as deep as any that was published (DeepNet)


def network(place: str, input_shape: str = "") -> tuple[user_code.Builder, tuple[Input, ...]]:
    """Return what builds the network of a folder with a config.json (or of that file), and its inputs.

    The class is the first of the config's ``architectures``, or else what AutoModel takes. ``input_shape`` of one input is
    that of its main one: for a network of words a sequence length, 512:int64. Raises InputError for a place or a config that
    is none.
    """
    config = _config(place)
    if wrong := list(_refused(config.to_dict())):
        raise InputError(f"model '{PREFIX}:{place}': {'; '.join(wrong)}")
    kind = _class(place, config)
    usual = {entry.name: entry for entry in _usual(config, kind)}
    given = inputs.parse(input_shape, _UNSTATED)
    if not given and kind.main_input_name not in usual:
        raise InputError(f"model '{PREFIX}:{place}' takes {choices(_takes(kind))}: say which in a YAML file, each with its "
                         "shape: --input-size inputs.yaml with lines such as input_ids: 77:int64")
    sample = _given(given, usual) if given else tuple(usual.values())

    def build() -> nn.Module:
        with _offline(f"model '{PREFIX}:{place}' cannot be built"):
            adapted = copy.deepcopy(config)
            adapted.use_cache = adapted.use_pretrained_backbone = False
            adapted.layerdrop, adapted.apply_spec_augment = 0.0, False  # both drop by random values; here nothing is dropped
            return kind(adapted)
    size = getattr(_text(config), "vocab_size", None)
    if isinstance(size, int) and size > 1:  # whole numbers are those that the vocabulary has
        sample = tuple(replace(entry, below=size) if entry.name in _TOKEN_INPUTS else entry for entry in sample)
    return build, sample


def family(place: str) -> str:
    """Return the model type of a config."""
    return str(_config(place).model_type)


@contextmanager
def _offline(what: str) -> Iterator[None]:
    """Run transformers without the network and without its advice; what it raises is one line."""
    import huggingface_hub.constants
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with user_code.running(what), mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True):
            yield
    finally:
        logging.set_verbosity(before)


def _config(place: str) -> Any:
    path = Path(place).expanduser()
    path = path / _CONFIG if path.is_dir() else path
    if not place or not path.is_file():
        advice = (f"; for a network of the Hugging Face hub, get its config once: curl -fL --create-dirs -o {place}/{_CONFIG} "
                  f"https://huggingface.co/{place}/resolve/main/{_CONFIG}") if re.fullmatch(_HUB_NAME, place) else ""
        raise InputError(f"model '{PREFIX}:{place}': {path} is missing; name a folder that holds a {_CONFIG}, or that file: "
                         f"nothing is looked up in the network{advice}")
    with _offline(f"model '{PREFIX}:{place}' cannot be read"):
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)


def _refused(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a config no network is built of here, also of the configs within it."""
    for name, value in entries.items():
        if name == "quantization_config" and value:
            yield f"{name}: no model here is of quantised networks; leave it out for the network in --dtype"
        elif isinstance(value, Mapping):
            yield from _refused(value)
        elif str(name).endswith(("layer", "layers")) and isinstance(value, int) and value > _MOST_LAYERS:
            yield f"{name} = {value:,} is more than {_MOST_LAYERS:,}"


def _class(place: str, config: Any) -> type[nn.Module]:
    """Return the class that a config is of; InputError where transformers has none."""
    with _offline(f"model '{PREFIX}:{place}' has no class"):
        import transformers

        stated = [getattr(transformers, name, None) for name in config.architectures or ()]
        usual = transformers.MODEL_MAPPING.get(type(config), None)
        candidates = [*stated, *(usual if isinstance(usual, list | tuple) else [usual])]
    kind = next((item for item in candidates if inspect.isclass(item) and issubclass(item, transformers.PreTrainedModel)), None)
    if kind is None:
        raise InputError(f"model '{PREFIX}:{place}': transformers has no network of the type {config.model_type!r}")
    return kind


def _takes(kind: type[nn.Module]) -> list[str]:
    return [name for name in inspect.signature(kind.forward).parameters if name not in ("self", "kwargs")]


def _usual(config: Any, kind: type[nn.Module]) -> Iterator[Input]:
    """Yield what a network is given where nothing is asked for, the main input first."""
    takes, main = _takes(kind), kind.main_input_name
    makers = {"input_ids": _tokens, "decoder_input_ids": _answer, "pixel_values": _picture, "input_values": _sound,
              "input_features": _features}
    for name in sorted(makers, key=lambda name: name != main):
        if name in takes and (shape := makers[name](config, name == main)):
            yield Input(shape, "int64" if name in _TOKEN_INPUTS else FLOAT, name)


def _tokens(config: Any, main: bool) -> tuple[int, ...]:
    text = _text(config)
    if not main and not getattr(text, "vocab_size", None):
        return ()
    return (_bound(text, *_POSITIONS),)


def _bound(text: Any, *names: str) -> int:
    """Return how many tokens there are where nothing is asked for: as many as a config has positions for, at most."""
    return min([_TOKENS, *(value for name in names if isinstance(value := getattr(text, name, None), int) and value > 0)])


def _answer(config: Any, main: bool) -> tuple[int, ...]:
    words = config.is_encoder_decoder and _tokens(config, main)
    return (min(words[0], _bound(_text(config), "max_target_positions")),) if words else ()


def _picture(config: Any, main: bool) -> tuple[int, ...]:
    seen = getattr(config, "vision_config", None) or config
    size = getattr(seen, "image_size", None)
    if not main and (size is None or any(getattr(config, name, None) is not None for name in _IMAGES_AS_TOKENS)):
        return ()
    height, width = size if isinstance(size, list | tuple) else (size or _IMAGE,) * 2
    return (getattr(seen, "num_channels", None) or 3, height, width)


def _sound(config: Any, main: bool) -> tuple[int, ...]:
    if not main:
        return ()
    bins, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    return (length, bins) if bins and length else (_SAMPLES,)


def _features(config: Any, main: bool) -> tuple[int, ...]:
    bins, length = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    return (bins, 2 * length) if main and bins and length else ()


def _text(config: Any) -> Any:
    try:
        return config.get_text_config()
    except ValueError:  # several
        return config


def _given(given: tuple[Input, ...], usual: Mapping[str, Input]) -> tuple[Input, ...]:
    """Return the inputs that were asked for.

    One without a name is the first of the usual ones with as many dimensions, or else the main one; other words have as many
    tokens. An element type that is not stated is the usual one.
    """
    if given[0].name or not usual:
        return tuple(_typed(entry, usual.get(entry.name)) for entry in given)
    matching = next((name for name, entry in usual.items() if len(entry.shape) == len(given[0].shape)), next(iter(usual)))
    resized = {matching, *_TOKEN_INPUTS} if matching in _TOKEN_INPUTS else {matching}
    return tuple(_typed(replace(given[0], name=name), entry) if name in resized else entry for name, entry in usual.items())


def _typed(entry: Input, usual: Input | None) -> Input:
    return entry if entry.dtype != _UNSTATED else replace(entry, dtype=usual.dtype if usual else FLOAT)
