"""Networks of timm by name, without their published weights, for the input that timm states of them."""

from typing import Any

from torch import nn

from lib.errors import InputError, choices
from lib.names import did_you_mean
from lib.work import user_code
from lib.work.building import inputs

PREFIX = "timm"
MERGED = "+merged"  # behind a name: parallel branches are one convolution each, as timm's benchmark.py --reparam runs it
_SAMPLE = 3  # channels, height, width


def network(name: str, input_shape: str = "") -> tuple[user_code.Builder, tuple[inputs.Input, ...]]:
    """Return what builds timm's network ``name`` (with a tag, such as convnext_tiny.fb_in22k, or without), and its input.

    Behind the name may stand MERGED. ``input_shape`` empty is the size that timm states. Raises InputError for a name or tag
    that is none, with the nearest, and for an input that is no picture.
    """
    bare = name.removesuffix(MERGED)
    stated, given = _stated(bare), inputs.parse(input_shape)
    if not (given or stated.get("input_size")):
        raise InputError(f"timm states no input size of {name!r}; give one: --input-size 3x224x224")
    sample = given or (inputs.Input(tuple(stated["input_size"])),)
    if len(sample) > 1 or not sample[0].is_float or len(sample[0].shape) != _SAMPLE:
        raise InputError(f"model '{PREFIX}:{name}' takes pictures, channels x height x width, not {input_shape}; give "
                         f"{'x'.join(map(str, stated.get('input_size') or (3, 224, 224)))}")
    channels, *size = sample[0].shape
    options = {"in_chans": channels}
    if given and stated.get("fixed_input_size"):
        options["img_size"] = tuple(size)

    def build() -> nn.Module:
        import timm
        from timm.utils import reparameterize_model

        with user_code.running(f"model '{PREFIX}:{name}' cannot be built for inputs of {'x'.join(map(str, sample[0].shape))}"):
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
    """Return what timm states of a network; InputError with the nearest names for one that is none."""
    import timm

    architecture, _, tag = name.partition(".")
    if not timm.is_model(name):
        raise InputError(f"timm has no network {name!r}{did_you_mean(architecture, timm.list_models())}")
    try:
        stated = timm.get_pretrained_cfg(name)
    except RuntimeError:
        tags = [model.partition(".")[2] for model in timm.list_models(f"{architecture}.*", include_tags=True)]
        raise InputError(f"timm has no {tag!r} of {architecture!r}; there are: {choices(tags) or 'none'}") from None
    return stated.to_dict() if stated else {}
