"""Any network and its inputs -> the list of ATen operators that a pass or a training step runs, without running it.

Tensors are fake (shape, strides and dtype without storage), so nothing is computed or allocated.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from lib.errors import InputError, choices
from lib.work import user_code
from lib.work.building import autocasts, fakes, inputs, values
from lib.work.building.inputs import FLOAT, Input
from lib.work.graph import counts, cuda_kernels
from lib.work.graph.ops import MODES, Graph, Ops, Shape, TensorSpec
from lib.work.graph.recorder import Recorder, named_modules
from lib.work.networks import Network

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
              "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4)}
_UNRECORDED = "does not require grad"  # of torch's error where a network differentiates under no_grad


def _converted(model: nn.Module, dtype: torch.dtype, channels_last: bool) -> nn.Module:
    """Make a network's tensors fake, those of floats of one element type, in place; a tensor that is shared stays shared.

    Transformer encoders keep padded tokens: whether torch leaves them out, as nested tensors, depends on values of the mask.
    """
    done = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        as_it_is = tensor.dtype == dtype or not tensor.is_floating_point()
        if as_it_is and isinstance(tensor, FakeTensor) and not channels_last:
            return tensor
        if id(tensor) not in done:
            layout = torch.channels_last if channels_last and tensor.dim() == 4 else torch.preserve_format
            new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype) if as_it_is else tensor.detach()
            new = new.to(dtype if tensor.is_floating_point() else tensor.dtype, memory_format=layout)
            done[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        return done[id(tensor)]

    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: convert(tensor) for name, tensor in tensors.items() if tensor is not None})
    return model


def default_loss(output: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy against class 0 for logits (N, classes), else the mean square."""
    if output.dim() == 2:
        return nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long, device=output.device))
    return output.square().mean()


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first tensor of floats, or else of any numbers, of what a network returns: a tensor, or what holds some.

    That may be a tuple, a dictionary or an object of its own. Raises RuntimeError where there is none.
    """
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    leaves = leaves or [value for value in getattr(output, "__dict__", {}).values() if isinstance(value, torch.Tensor)]
    if not leaves:
        raise RuntimeError(f"it returns a {type(output).__name__} without a tensor, where a tensor, or a tuple, list or "
                           "dictionary of them is needed")
    return next((leaf for leaf in leaves if leaf.is_floating_point()), leaves[0])


@dataclass(frozen=True)
class _Setup:
    """How a network is run: the step, the element type and layout of its tensors, what autocast computes in, and the device.

    ``root`` is the name of the network as a layer, so that its own operators are told from the loss. ``grad``: inference with
    gradients recorded, for a network that differentiates by its inputs.
    """

    mode: str
    optimizer: str = ""
    dtype: str = "float32"
    channels_last: bool = False
    autocast: str = ""
    device: str = "cpu"
    root: str = ""
    grad: bool = False


def capture(model: nn.Module, shape: Sequence[int], mode: str = "infer", optimizer: str = "", name: str = "the network",
            **how: Any) -> Graph:
    """List the operators that ``model`` runs on an input of ``shape`` (batch first) on ``device``, which need not be here.

    ``mode`` infer is a forward pass in evaluation mode without autograd; train is forward, ``default_loss`` and backward in
    training mode, and a step of ``optimizer`` (of OPTIMIZERS) unless that is empty. ``how`` are ``dtype`` of the
    whole network, ``channels_last``, ``device`` and ``autocast``, an element type of 16 bits: forward and loss then run as
    torch.autocast runs them. The model itself is not changed; errors call it ``name``.
    Raises InputError when the network cannot take the shape, with torch's reason, and for one that
    computes nothing or hides what it computes.
    """
    setup = _Setup(mode, optimizer, **how)
    batch = (Input(tuple(shape)),)
    real = None if any(isinstance(parameter, FakeTensor) for parameter in model.parameters()) else partial(copy.deepcopy, model)
    _check(model, name)
    fake = _fake(_copied(model, name), setup.dtype, setup.channels_last, name)
    return _captured(fake, batch, setup, name, real)


def prepared(network: Network, dtype: str = "float32", channels_last: bool = False) -> nn.Module:
    """Build a network of fake tensors alone: what ``of_network`` captures several times."""
    with user_code.alone, torch.random.fork_rng(devices=[]), values.seeded():
        torch.default_generator.manual_seed(0)
        model = fakes.build(network.build)
    _check(model, f"model {network.name!r}")
    return _fake(model, dtype, channels_last, f"model {network.name!r}")


def of_network(network: Network, mode: str = "infer", dtype: str = "float32", channels_last: bool = False,
               ready: nn.Module | None = None, **how: str) -> Graph:
    """Build a network without its weights and list the operators that it runs on its batch, see ``capture``.

    ``ready`` is the network where it was ``prepared`` before; it stays as it is. ``how`` are ``device``, ``autocast`` and
    ``root``, which names the network as a layer, so that its own operators are told from the loss.
    A network whose control flow reads values is run once with random inputs, where it is small enough, and goes the way
    that they take (``Graph.branches``). Raises InputError for what cannot be built or captured.
    """
    name = f"model {network.name!r}"
    built = prepared(network, dtype, channels_last) if ready is None else _copied(ready, name)
    setup = _Setup(mode, dtype=dtype, channels_last=channels_last, **how)
    return _captured(built, network.batch, setup, name, network.build)


def _captured(model: nn.Module, batch: Sequence[Input], setup: _Setup, name: str,
              real: user_code.Builder | None) -> Graph:
    """Capture a network of fake tensors on a batch; where it reads values, by those of a run of what ``real`` builds."""
    if setup.mode not in MODES or setup.optimizer not in ("", *OPTIMIZERS):
        raise InputError(f"no mode {setup.mode!r} or optimizer {setup.optimizer!r}; there are: infer, train; "
                         f"{choices(OPTIMIZERS)}")
    if setup.mode == "train" and not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{name} has no parameters to train")
    try:
        return _with_values(model, batch, setup, name, real)
    except InputError as error:
        if setup.mode != "infer" or setup.grad or _UNRECORDED not in str(error):
            raise
    return _captured(model, batch, replace(setup, grad=True), name, real)


def _with_values(model: nn.Module, batch: Sequence[Input], setup: _Setup, name: str,
                 real: user_code.Builder | None) -> Graph:
    """Record a network of fake tensors; where it reads values, again with those of a run of what ``real`` builds."""
    try:
        return _recorded(model, batch, setup, name, {})
    except InputError as error:
        if real is None or not values.missing(error):
            raise
        weights = sum(weight.numel() * weight.itemsize for weight in model.parameters())
        if weights > values.MOST_BYTES:
            raise InputError(f"{error}; its {weights / 1e6:,.0f} MB of weights are too many to run it for them") from error
    training = setup.mode == "train"
    return _recorded(model, batch, setup, name, values.of_a_run(real, batch, training, name, training or setup.grad))


def _recorded(model: nn.Module, batch: Sequence[Input], setup: _Setup, name: str, answers: values.Values) -> Graph:
    recorder, given = Recorder(), None
    if setup.device.startswith("cuda"):
        from torch.nn.attention import flex_attention  # noqa: F401 - a network that is the first would get the CPU's
    try:
        with user_code.running(f"{name} does not run on {inputs.described(batch)}"), fakes.active(), fakes.running(), \
                cuda_kernels.chosen(setup.device), values.answering(answers), values.seeded():
            given = [torch.empty(item.shape, dtype=getattr(torch, setup.dtype if item.dtype == FLOAT else item.dtype),
                                 memory_format=torch.channels_last if setup.channels_last and item.is_picture else
                                 torch.contiguous_format) for item in batch]
            output = _run(user_code.in_mode(model, setup.mode == "train"), given, batch, recorder, setup)
            recorder.sweep()
        if not any(map(counts.is_work, recorder.ops)):
            raise InputError(f"{name} computes nothing of {inputs.described(batch)}: there is nothing to count or to time")
        parameters = list(model.parameters())
        return Graph(tuple(recorder.ops), sum(p.numel() for p in parameters), sum(p.numel() * p.itemsize for p in parameters),
                     recorder.bytes["buffer"], output, tuple(recorder.made), tuple(recorder.freed),
                     tuple(p.numel() for p in parameters if p.requires_grad),
                     values.places(answers), setup.autocast or setup.dtype)
    finally:
        for parameter in model.parameters():
            parameter.grad = None  # a prepared network shares them with the next capture
        model = given = None
        if recorder.leaves_tensors():
            fakes.forget()


def _copied(model: nn.Module, name: str) -> nn.Module:
    """Return a copy of a network with fake tensors."""
    with user_code.running(f"{name} cannot be copied"), fakes.copying():
        return copy.deepcopy(model)


def _check(model: nn.Module, name: str) -> None:
    """Raise InputError for a network that hides what it computes."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise InputError(f"{name} holds TorchScript, which hides its operators; give the class that was scripted or traced")
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(is_lazy, tensors)):
        raise InputError(f"{name} holds lazy layers, whose sizes are not known before it runs; give their sizes")
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise InputError(f"{name} holds sparse tensors, which are not captured; give dense ones")


def _fake(model: nn.Module, dtype: str, channels_last: bool, name: str) -> nn.Module:
    """Return a network with fake tensors alone, see ``_converted``."""
    with user_code.running(f"{name} cannot be captured"), fakes.active():
        return _converted(model, getattr(torch, dtype), channels_last)


def _run(model: nn.Module, given: Sequence[torch.Tensor], batch: Sequence[Input], recorder: Recorder, setup: _Setup
         ) -> Shape:
    """Run one step on fake tensors under ``recorder``; an optimizer's first step, which makes its state, is not recorded."""
    leaves = [leaf for module in model.modules() for leaf in tree_leaves(vars(module)) if isinstance(leaf, torch.Tensor)]
    # also the tensors in plain attributes of modules, in lists and dictionaries
    buffers = [leaf for leaf in leaves if not isinstance(leaf, nn.Parameter)]
    for kind, tensors in (("parameter", model.parameters()), ("buffer", buffers), ("input", given)):
        for tensor in tensors:
            recorder.enter(tensor, kind)
    placed, named = inputs.arguments(given, batch)
    if setup.mode == "infer":
        with torch.set_grad_enabled(setup.grad), named_modules(model, recorder, setup.root), recorder, \
                autocasts.region(setup.autocast, setup.device):
            return tuple(first_tensor(model(*placed, **named)).shape)

    def lost() -> tuple[torch.Tensor, Shape]:
        with autocasts.region(setup.autocast, setup.device):
            output = first_tensor(model(*placed, **named))
            if not output.requires_grad:
                raise RuntimeError("no gradient reaches its output, which is computed under no_grad or inference_mode, or is "
                                   "detached; ask for inference")
            return default_loss(output), tuple(output.shape)

    stepper = OPTIMIZERS[setup.optimizer](model.parameters()) if setup.optimizer else None
    if stepper:
        lost()[0].backward()
        stepper.step()
        stepper.zero_grad()
    with named_modules(model, recorder, setup.root), recorder:
        loss, shape = lost()
        loss.backward()
        recorder.phase = "optimizer"
        if stepper:
            stepper.step()
    return shape


@cache
def optimizer_ops(elements: int, optimizer: str) -> Ops:
    """List the operators that a step of ``optimizer`` (adam, adamw, sgd) runs on one parameter, once it has its state."""
    recorder = Recorder()
    with fakes.active():
        parameter = nn.Parameter(torch.empty(elements))
        parameter.grad = torch.empty(elements)
        stepper = OPTIMIZERS[optimizer]([parameter])
        stepper.step()
        with recorder:
            stepper.step()
    return tuple(recorder.ops)


def capture_function(function: Callable[..., torch.Tensor], given: Sequence[tuple[TensorSpec, bool]],
                     passes: str, device: str) -> Ops:
    """List the operators of one pass (forward or backward) of ``function`` on tensors of the given specs, on ``device``.

    Each input comes with whether it wants a gradient. Raises InputError with torch's reason when the shapes do not fit.
    """
    try:
        with fakes.active(), cuda_kernels.chosen(device):
            tensors = [torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype),
                                           requires_grad=wants and passes == "backward") for spec, wants in given]
            recorder = Recorder()
            with recorder:
                output = first_tensor(function(*tensors))
            wanted = [tensor for tensor in tensors if tensor.requires_grad]
            if passes == "backward" and not wanted:
                raise InputError("there is no backward pass: no input wants a gradient")
            if passes == "backward":
                gradient = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype)
                with recorder:
                    torch.autograd.grad(output, wanted, gradient)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(str(error).splitlines()[0]) from error
    return tuple(op for op in recorder.ops if op.phase == passes)
