"""Networks of Hugging Face's transformers, built from a local config: no weights, no downloads."""

import copy
import inspect
import re
from collections.abc import Iterator
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
_TOKENS, _SAMPLES, _IMAGE = 128, 16_000, 224  # usual tokens, samples of sound, pixels
_IMAGES_AS_TOKENS = ("image_token_id", "image_token_index", "image_token")  # pictures among words
_TOKEN_INPUTS = ("input_ids", "decoder_input_ids")
_INPUTS = (*_TOKEN_INPUTS, "pixel_values", "input_values", "input_features")
_UNSTATED = ""  # element type


def network(place: str, input_shape: str = "") -> tuple[user_code.Builder, tuple[Input, ...]]:
    """Return what builds the network of a config.json, or of its folder, and its inputs.

    The class is the first of the config's ``architectures``, or else what AutoModel takes.
    ``input_shape`` of one input is that of the main one: for a network of words a sequence length,
    512:int64. Raises InputError for a missing or wrong config.
    """
    config, name = _config(place), f"model '{PREFIX}:{place}'"
    if any(getattr(part, "quantization_config", None) for part in (config, _text(config))):
        raise InputError(f"{name}: quantization_config: no model here is of quantised networks; "
                         "leave it out for the network in --dtype")
    kind = _class(name, config)
    takes = [item for item in inspect.signature(kind.forward).parameters
             if item not in ("self", "kwargs")]
    main = kind.main_input_name
    usual = {}
    for item in sorted(_INPUTS, key=lambda item: item != main):  # the main input first
        if item in takes and (shape := _usual_shape(config, item, item == main)):
            usual[item] = Input(shape, "int64" if item in _TOKEN_INPUTS else FLOAT, item)
    given = inputs.parse(input_shape, _UNSTATED)
    if not given and main not in usual:
        raise InputError(f"{name} takes {choices(takes)}: say which in a YAML file, each with its "
                         "shape: --input-size inputs.yaml with lines such as input_ids: 77:int64")
    sample = _given(given, usual) if given else tuple(usual.values())
    size = getattr(_text(config), "vocab_size", None)
    if isinstance(size, int) and size > 1:
        sample = tuple(replace(item, below=size) if item.name in _TOKEN_INPUTS else item
                       for item in sample)

    def build() -> nn.Module:
        with _offline(f"{name} cannot be built"):
            adapted = copy.deepcopy(config)
            adapted.use_cache = adapted.use_pretrained_backbone = False
            adapted.layerdrop, adapted.apply_spec_augment = 0.0, False  # both drop at random
            return kind(adapted)
    return build, sample


def family(place: str) -> str:
    """Return the model type of a config."""
    return str(_config(place).model_type)


@contextmanager
def _offline(what: str) -> Iterator[None]:
    """Run transformers without the network, which a config's ``backbone`` may ask for."""
    import huggingface_hub.constants

    offline = mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with user_code.running(what), offline:
        yield


def _config(place: str) -> Any:
    path = Path(place).expanduser()
    path = path / _CONFIG if path.is_dir() else path
    if not place or not path.is_file():
        advice = ""
        if re.fullmatch(_HUB_NAME, place):
            advice = ("; for a network of the Hugging Face hub, get its config once: curl -fL "
                      f"--create-dirs -o {place}/{_CONFIG} "
                      f"https://huggingface.co/{place}/resolve/main/{_CONFIG}")
        raise InputError(f"model '{PREFIX}:{place}': {path} is missing; name a folder that holds a "
                         f"{_CONFIG}, or that file: nothing is looked up in the network{advice}")
    with _offline(f"model '{PREFIX}:{place}' cannot be read"):
        from transformers import AutoConfig
        from transformers.utils import logging

        logging.set_verbosity_error()
        return AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)


def _class(name: str, config: Any) -> type[nn.Module]:
    """Return the class of a config's network; InputError where transformers has none."""
    with user_code.running(f"{name} has no class"):
        import transformers

        stated = [getattr(transformers, item, None) for item in config.architectures or ()]
        usual = transformers.MODEL_MAPPING.get(type(config), None)
        listed = usual if isinstance(usual, tuple) else (usual,)
        networks = [item for item in (*stated, *listed)
                    if inspect.isclass(item) and issubclass(item, transformers.PreTrainedModel)]
    if not networks:
        raise InputError(f"{name}: transformers has no network of type {config.model_type!r}")
    return networks[0]


def _usual_shape(config: Any, name: str, is_main: bool) -> tuple[int, ...]:
    """Return the usual shape of an input; () for one that is given only where it is asked for."""
    def stated(field: str) -> Any:
        return getattr(config, field, None)

    text, bins = _text(config), stated("num_mel_bins")
    if name in _TOKEN_INPUTS:
        is_answer = name == "decoder_input_ids"
        has_words = is_main or getattr(text, "vocab_size", None)
        if not has_words or (is_answer and not config.is_encoder_decoder):
            return ()
        bounds = ["max_position_embeddings", "n_positions"]
        if is_answer:
            bounds.append("max_target_positions")
        lengths = [getattr(text, bound, None) for bound in bounds]
        return (min([_TOKENS, *(size for size in lengths if isinstance(size, int) and size > 0)]),)
    if name == "pixel_values":
        seen = stated("vision_config") or config
        size = getattr(seen, "image_size", None)
        among_words = any(stated(field) is not None for field in _IMAGES_AS_TOKENS)
        if not is_main and (size is None or among_words):
            return ()
        height, width = size if isinstance(size, list | tuple) else (size or _IMAGE,) * 2
        return (getattr(seen, "num_channels", None) or 3, height, width)
    if not is_main:
        return ()
    if name == "input_values":
        length = stated("max_length")
        return (length, bins) if bins and length else (_SAMPLES,)
    length = stated("max_source_positions")
    return (bins, 2 * length) if bins and length else ()


def _text(config: Any) -> Any:
    try:
        return config.get_text_config()
    except ValueError:  # several
        return config


def _given(given: tuple[Input, ...], usual: dict[str, Input]) -> tuple[Input, ...]:
    """Return the inputs that were asked for, with the usual element type where none is stated.

    An input without a name is the first usual one of as many dimensions, or else the main one;
    where it is of words, all inputs of words have its length.
    """
    asked = {item.name: item for item in given}
    if "" in asked and usual:
        (item,) = given
        same = [name for name, other in usual.items() if len(other.shape) == len(item.shape)]
        name = (same or list(usual))[0]
        names = [name] if name not in _TOKEN_INPUTS else [*_TOKEN_INPUTS]
        asked = {other: replace(item, name=other) if other in names else usual[other]
                 for other in usual}
    return tuple(item if item.dtype != _UNSTATED else
                 replace(item, dtype=usual[name].dtype if name in usual else FLOAT)
                 for name, item in asked.items())
