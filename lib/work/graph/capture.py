"""Any network and input shape -> the list of ATen operators that a pass or a training step runs, without running it.

Tensors are fake (shape, strides and dtype without storage: torch's FakeTensor), so nothing is computed or allocated.
"""

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_flatten

from lib.errors import InputError, choices
from lib.work import user_code
from lib.work.graph import counts, cuda_kernels
from lib.work.graph.ops import MODES, Graph, Op, TensorSpec
from lib.work.graph.recorder import Recorder, named_modules
from lib.work.networks import Network

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
              "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4)}
_SMALL = 4096


def build_unfilled(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network whose large tensors are left unwritten (address space alone): for capture, never for running.

    Initialisers of ``torch.nn.init`` are skipped on large tensors; others run, and read whatever they read.
    """
    def skip(initialiser: Callable) -> Callable:
        return lambda tensor, *args, **kwargs: tensor if tensor.numel() > _SMALL else initialiser(tensor, *args, **kwargs)

    with ExitStack() as stack:
        for name, initialiser in vars(nn.init).items():
            if name.endswith("_") and not name.startswith("_"):
                stack.enter_context(patch.object(nn.init, name, skip(initialiser)))
        return build()


def _converted(model: nn.Module, dtype: torch.dtype, channels_last: bool) -> nn.Module:
    """Convert a fake network's floating-point tensors in place; a tensor that is shared stays shared."""
    done: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done:
            layout = torch.channels_last if channels_last and tensor.dim() == 4 else torch.preserve_format
            new = tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype, memory_format=layout)
            done[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        return done[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: convert(tensor) for name, tensor in tensors.items() if tensor is not None})
    return model


def default_loss(output: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy against class 0 for logits (N, classes), else the mean square."""
    if output.dim() == 2:
        return nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long, device=output.device))
    return output.square().mean()


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first tensor of what a network returns (some return tuples, dictionaries or objects of their own).

    Raises RuntimeError where there is none.
    """
    leaves = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor)]
    leaves = leaves or [value for value in getattr(output, "__dict__", {}).values() if isinstance(value, torch.Tensor)]
    if not leaves:
        raise RuntimeError(f"it returns a {type(output).__name__} without a tensor, where a tensor, or a tuple, list or "
                           "dictionary of them is needed")
    return leaves[0]


def capture(model: nn.Module, shape: Sequence[int], mode: str = "infer", optimizer: str = "", dtype: str = "float32",
            channels_last: bool = False, loss: Callable[[torch.Tensor], torch.Tensor] = default_loss,
            name: str = "the network", device: str = "cpu") -> Graph:
    """List the operators that ``model`` runs on an input of ``shape`` (batch first) on ``device``, which need not be here.

    ``mode`` infer is a forward pass in evaluation mode without autograd; train is forward, ``loss`` and backward in
    training mode, and a step of ``optimizer`` (of OPTIMIZERS) unless that is empty. The model itself is not changed; errors
    call it ``name``. Raises InputError when the network cannot take the shape, with torch's reason, and for one that computes
    nothing or hides what it computes.
    """
    if mode not in MODES or optimizer not in ("", *OPTIMIZERS):
        raise InputError(f"no mode {mode!r} or optimizer {optimizer!r}; there are: infer, train; {choices(OPTIMIZERS)}")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise InputError(f"{name} holds TorchScript, which hides its operators; give the class that was scripted or traced")
    fake, recorder = FakeTensorMode(), Recorder({})
    with user_code.running(f"{name} does not run on an input of shape {tuple(shape)}"), _silent_torch(), \
            cuda_kernels.chosen(device):
        with FakeCopyMode(fake):
            model = copy.deepcopy(model)
        with fake:
            model = _converted(model, getattr(torch, dtype), channels_last)
            inputs = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
            inputs = inputs.to(memory_format=torch.channels_last) if channels_last else inputs
            output = _run(model.train(mode == "train"), inputs, recorder, optimizer, loss)
            recorder.sweep()
    if not any(map(counts.is_work, recorder.ops)):
        raise InputError(f"{name} computes nothing of an input of shape {tuple(shape)}: there is nothing to count or to time")
    return _graph(model, recorder, output)


def of_network(network: Network, mode: str = "infer", dtype: str = "float32", channels_last: bool = False,
               root: str = "", device: str = "cpu") -> Graph:
    """Build a network, its weights unwritten, and list the operators that it runs on its batch, see ``capture``.

    ``root`` names the network as a layer of its own. Raises InputError for what cannot be built or captured.
    """
    model = build_unfilled(network.build)
    model = nn.Sequential(OrderedDict({root: model})) if root else model
    return capture(model, network.shape, mode, dtype=dtype, channels_last=channels_last, name=f"model {network.name!r}",
                   device=device)


@contextmanager
def _silent_torch() -> Iterator[None]:
    """Keep torch from logging a traceback of what is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _run(model: nn.Module, inputs: torch.Tensor, recorder: Recorder, optimizer: str, loss: Callable) -> tuple[int, ...]:
    """Run one step on fake tensors under ``recorder``; an optimizer's first step, which makes its state, is not recorded."""
    for tensor, kind in [*((t, "parameter") for t in model.parameters()), *((t, "buffer") for t in model.buffers()),
                         (inputs, "input")]:
        recorder.number_of(tensor, kind)
    if not model.training:
        with torch.no_grad(), named_modules(model, recorder), recorder:
            return tuple(first_tensor(model(inputs)).shape)
    stepper = OPTIMIZERS[optimizer](model.parameters()) if optimizer else None
    if stepper:
        loss(first_tensor(model(inputs))).backward()
        stepper.step()
        stepper.zero_grad()
    with named_modules(model, recorder), recorder:
        output = first_tensor(model(inputs))
        loss(output).backward()
        recorder.phase = "optimizer"
        if stepper:
            stepper.step()
    return tuple(output.shape)


def _graph(model: nn.Module, recorder: Recorder, output: tuple[int, ...]) -> Graph:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return Graph(tuple(recorder.ops), sum(p.numel() for p in parameters), sum(p.numel() * p.itemsize for p in parameters),
                 sum(b.numel() * b.itemsize for b in buffers),
                 {name: type(module).__name__ for name, module in model.named_modules()}, output, tuple(recorder.made),
                 tuple(recorder.freed), tuple(p.numel() for p in parameters if p.requires_grad))


@cache
def optimizer_ops(elements: int, optimizer: str) -> tuple[Op, ...]:
    """List the operators that a step of ``optimizer`` (adam, adamw, sgd) runs on one parameter, once it has its state."""
    recorder = Recorder({})
    with _silent_torch(), FakeTensorMode():
        parameter = nn.Parameter(torch.empty(elements))
        parameter.grad = torch.empty(elements)
        stepper = OPTIMIZERS[optimizer]([parameter])
        stepper.step()
        with recorder:
            stepper.step()
    return tuple(recorder.ops)


def capture_function(function: Callable[..., torch.Tensor], inputs: Sequence[tuple[TensorSpec, bool]],
                     passes: str, device: str = "cpu") -> tuple[Op, ...]:
    """List the operators of one pass (forward or backward) of ``function`` on tensors of the given specs, on ``device``.

    Each input comes with whether it wants a gradient. Raises InputError with torch's reason when the shapes do not fit.
    """
    try:
        with _silent_torch(), FakeTensorMode(), cuda_kernels.chosen(device):
            tensors = [torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype),
                                           requires_grad=wants and passes == "backward") for spec, wants in inputs]
            recorder = Recorder({})
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
