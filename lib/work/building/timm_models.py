"""Networks of timm by name, without weights, for the input size that timm states."""

from typing import Any

from torch import nn

from lib.errors import InputError, choices
from lib.names import did_you_mean
from lib.work import user_code
from lib.work.building import inputs

PREFIX = "timm"
MERGED = "+merged"  # behind a name: each parallel branch is one convolution (timm's --reparam)
_SAMPLE = 3  # channels, height, width


def network(name: str, input_shape: str = "") -> tuple[user_code.Builder, tuple[inputs.Input, ...]]:
    """Return what builds timm's network ``name``, perhaps with a tag or MERGED, and its input.

    Raises InputError for a wrong name or tag, with the nearest, and for an input that is no
    picture.
    """
    bare = name.removesuffix(MERGED)
    stated, given = _stated(bare), inputs.parse(input_shape)
    size = tuple(stated.get("input_size") or ())
    if not (given or size):
        raise InputError(f"timm states no input size of {name!r}; give one: --input-size 3x224x224")
    sample = given or (inputs.Input(size),)
    if len(sample) > 1 or not sample[0].is_float or len(sample[0].shape) != _SAMPLE:
        raise InputError(f"model '{PREFIX}:{name}' takes pictures, channels x height x width, not "
                         f"{input_shape}; give {'x'.join(map(str, size or (3, 224, 224)))}")
    options = {"in_chans": sample[0].shape[0]}
    if given and stated.get("fixed_input_size"):
        options["img_size"] = sample[0].shape[1:]
    shown = "x".join(map(str, sample[0].shape))

    def build() -> nn.Module:
        import timm
        from timm.utils import reparameterize_model

        with user_code.running(f"model '{PREFIX}:{name}' cannot be built for inputs of {shown}"):
            made = timm.create_model(bare, pretrained=False, **options)
            return made if bare == name else reparameterize_model(made, inplace=True)
    return build, sample


def family(name: str) -> str:
    """Return the file of timm that defines a network."""
    import timm

    name = name.removesuffix(MERGED)
    _stated(name)
    return timm.model_entrypoint(name).__module__.rpartition(".")[2]


def _stated(name: str) -> dict[str, Any]:
    """Return timm's facts of a network; InputError with the nearest names for a wrong name."""
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(name):
        raise InputError(f"timm has no network {name!r}"
                         + did_you_mean(architecture, timm.list_models()))
    tagged = timm.list_models(f"{architecture}.*", include_tags=True)
    if "." in name and name not in tagged:
        raise InputError(f"timm has no {tag!r} of {architecture!r}; there are: "
                         f"{choices(tagged) or 'none'}")
    stated = timm.get_pretrained_cfg(name)
    return stated.to_dict() if stated else {}
