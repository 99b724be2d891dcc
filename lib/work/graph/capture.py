"""Any network and input shape -> the list of ATen operators that a pass or a training step runs, without running it.

Tensors are fake (shape, strides and dtype without storage: torch's FakeTensor), so nothing is computed or allocated.
"""

import copy
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from lib.errors import InputError, choices

MODES = ("infer", "train")
PHASES = ("forward", "backward", "optimizer")
KINDS = ("parameter", "buffer", "input", "activation")
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)}
_NOT_WORK = ("prim.", "profiler.", "prims.")
_READS = "aten._local_scalar_dense.default"  # a number read by the host: no work of an operator
_SMALL = 4096


@dataclass(frozen=True)
class TensorSpec:
    """What an operator is given or gives: shape, strides, dtype; and, not compared, which storage and of what kind.

    ``storage`` numbers the storages of a graph, so that two uses of one tensor are known as such; -1 is unknown.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = "float32"
    storage: int = field(default=-1, compare=False)
    kind: str = field(default="activation", compare=False)

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return getattr(torch, self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Return the bytes of the distinct elements: a dimension of stride 0 (an expanded one) counts once."""
        return prod(size for size, step in zip(self.shape, self.stride, strict=True) if step) * self.itemsize


@dataclass(frozen=True)
class Op:
    """One call of an ATen operator; equal ops are the same work (module, phase and storages are not compared)."""

    name: str
    args: tuple
    kwargs: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[TensorSpec, ...] = field(default=(), compare=False)
    module: str = field(default="", compare=False)
    phase: str = field(default="forward", compare=False)

    @property
    def short(self) -> str:
        """Return the operator's name without namespace and overload: ``convolution``."""
        return self.name.split(".")[1]

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return every tensor argument, also those inside of lists."""
        leaves = tree_flatten([_unfrozen(self.args), [value for _, value in self.kwargs]])[0]
        return tuple(leaf for leaf in leaves if isinstance(leaf, TensorSpec))

    @property
    def overload(self):
        """Return torch's operator."""
        namespace, name, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)


@dataclass(frozen=True)
class Graph:
    """The operators of one pass or step in order, and what the network holds."""

    ops: tuple[Op, ...]
    parameters: int
    parameter_bytes: int
    buffer_bytes: int
    modules: dict[str, str]
    output: tuple[int, ...]
    made: tuple[dict[int, int], ...] = ()  # by each operator: storages that are new, with their bytes
    freed: tuple[tuple[int, ...], ...] = ()  # after each operator: storages that nothing refers to any more


def _unfrozen(value: Any) -> Any:
    return [_unfrozen(item) for item in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    """Make an argument hashable; dtypes, devices, layouts and memory formats become their names."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return f"{type(value).__name__}:{str(value).removeprefix('torch.')}"
    if isinstance(value, torch.Generator):
        return None
    return value


def _positional(func, args: Sequence, kwargs: dict[str, Any]) -> tuple[list, dict[str, Any]]:
    """Return the arguments with every positional one in its place, defaults filled in: one form of one call."""
    named, given = dict(kwargs), list(args)
    for argument in func._schema.arguments[len(given):]:
        if argument.kwarg_only or not (argument.name in named or argument.has_default_value()):
            break
        given.append(named.pop(argument.name, argument.default_value))
    return given, named


class _Recorder(TorchDispatchMode):
    """Writes down every operator below autograd, the storages it touches and the module that called for it."""

    def __init__(self, names: dict[int, str]):
        super().__init__()
        self.ops: list[Op] = []
        self.module: list[str] = [""]
        self.phase = "forward"
        self._by_node: dict[int, str] = {}
        self._storages: dict[int, tuple[int, str, StorageWeakRef]] = {}
        self._alive: dict[int, StorageWeakRef] = {}
        self.made: list[dict[int, int]] = []
        self.freed: list[tuple[int, ...]] = []
        self._names = names

    def known(self, tensor: torch.Tensor, kind: str) -> int:
        """Return the number of a tensor's storage; a new one is entered as of ``kind``."""
        key = tensor.untyped_storage()._cdata
        if key not in self._storages:
            # the weak reference keeps the address from being used again
            self._storages[key] = (len(self._storages), kind, StorageWeakRef(tensor.untyped_storage()))
        return self._storages[key][0]

    def _spec(self, value: Any, kind: str = "activation") -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        number = self.known(value, kind)
        kind = self._storages[value.untyped_storage()._cdata][1]
        return TensorSpec(tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch."), number, kind)

    def _enter(self, storages: list, before: int) -> None:
        """Write down which of an operator's storages are new; sizes are those of the whole storage."""
        new = {}
        for storage in storages:
            number, _, reference = self._storages[storage._cdata]
            if number >= before:
                new[number], self._alive[number] = storage.nbytes(), reference
        self.made.append(new)

    def sweep(self) -> None:
        """Write down which storages died since the last operator: as in the real run, Python's references decide."""
        if len(self.freed) < len(self.ops):
            dead = tuple(number for number, reference in self._alive.items() if reference.expired())
            for number in dead:
                del self._alive[number]
            self.freed.append(dead)

    def _where(self) -> tuple[str, str]:
        """Return module and phase; a backward operator belongs to the module that made its autograd node."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._by_node.get(node._sequence_nr(), ""), "backward"
        # the newest node is this operator's own, or it has none and leaves that of an earlier one alone
        self._by_node.setdefault(torch.autograd._get_sequence_nr() - 1, self.module[-1])
        return self.module[-1], self.phase

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        if name.startswith(_NOT_WORK) or name == _READS:
            return func(*args, **kwargs)
        self.sweep()
        module, phase = self._where()
        given, named = _positional(func, args, kwargs)
        given = _frozen(tree_map(self._spec, given))
        named = tuple(sorted((key, _frozen(tree_map(self._spec, value))) for key, value in named.items()))
        out = func(*args, **kwargs)
        before, leaves = len(self._storages), [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        outputs = tuple(self._spec(leaf) for leaf in leaves)
        self._enter([leaf.untyped_storage() for leaf in leaves], before)
        self.ops.append(Op(name, given, named, outputs, module, phase))
        return out


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
        for held in (module._parameters, module._buffers):
            held.update({name: convert(tensor) for name, tensor in held.items() if tensor is not None})
    return model


@contextmanager
def _named(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Keep the recorder told which module is running."""
    def enter(name: str):
        return lambda *_: recorder.module.append(name)

    def leave(*_) -> None:
        recorder.module.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def default_loss(output: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy against class 0 for logits (N, classes), else the mean square."""
    if output.dim() == 2:
        return nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long, device=output.device))
    return output.square().mean()


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first tensor of what a network returns (some return tuples, dictionaries or objects of their own)."""
    leaves = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor)]
    leaves = leaves or [value for value in vars(output).values() if isinstance(value, torch.Tensor)]
    return leaves[0]


def capture(model: nn.Module, shape: Sequence[int], mode: str = "infer", optimizer: str = "", dtype: str = "float32",
            channels_last: bool = False, loss: Callable[[torch.Tensor], torch.Tensor] = default_loss) -> Graph:
    """List the operators that ``model`` runs on an input of ``shape`` (batch first).

    ``mode`` infer is a forward pass in evaluation mode without autograd; train is forward, ``loss`` and backward in
    training mode, and a step of ``optimizer`` (adam, sgd) unless that is empty. The model itself is not changed.
    Raises InputError when the network cannot take the shape, with torch's reason.
    """
    if mode not in MODES or optimizer not in ("", *OPTIMIZERS):
        raise InputError(f"no mode {mode!r} or optimizer {optimizer!r}; there are: infer, train; {choices(OPTIMIZERS)}")
    fake = FakeTensorMode()
    try:
        with _silent_torch(), FakeCopyMode(fake):
            model = copy.deepcopy(model)
        with _silent_torch(), fake:
            model = _converted(model, getattr(torch, dtype), channels_last)
            inputs = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
            inputs = inputs.to(memory_format=torch.channels_last) if channels_last else inputs
            recorder = _Recorder({})
            output = _run(model.train(mode == "train"), inputs, recorder, optimizer, loss)
            recorder.sweep()
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        reason = _reason(error)
        raise InputError(f"the network does not run on an input of shape {tuple(shape)}: {reason}") from error
    return _graph(model, recorder, output)


@contextmanager
def _silent_torch() -> Iterator[None]:
    """Keep torch from logging a traceback of what is raised anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _reason(error: Exception) -> str:
    """Return why a network cannot be captured; where its own code reads values to decide, the file and line."""
    if "DataDependent" not in type(error).__name__:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if "torch" not in Path(frame.filename).parts and Path(frame.filename) != Path(__file__)]
    where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else "in torch's own code"
    return f"its control flow depends on values ({where}), which are not there before it runs"


def _run(model: nn.Module, inputs: torch.Tensor, recorder: _Recorder, optimizer: str, loss: Callable) -> tuple[int, ...]:
    """Run one step on fake tensors under ``recorder``; an optimizer's first step, which makes its state, is not recorded."""
    for tensor, kind in [*((t, "parameter") for t in model.parameters()), *((t, "buffer") for t in model.buffers()),
                         (inputs, "input")]:
        recorder.known(tensor, kind)
    if not model.training:
        with torch.no_grad(), _named(model, recorder), recorder:
            return tuple(first_tensor(model(inputs)).shape)
    stepper = OPTIMIZERS[optimizer](model.parameters()) if optimizer else None
    if stepper:
        loss(first_tensor(model(inputs))).backward()
        stepper.step()
        stepper.zero_grad()
    with _named(model, recorder), recorder:
        output = first_tensor(model(inputs))
        loss(output).backward()
        recorder.phase = "optimizer"
        if stepper:
            stepper.step()
    return tuple(output.shape)


def _graph(model: nn.Module, recorder: _Recorder, output: tuple[int, ...]) -> Graph:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return Graph(tuple(recorder.ops), sum(p.numel() for p in parameters), sum(p.numel() * p.itemsize for p in parameters),
                 sum(b.numel() * b.itemsize for b in buffers),
                 {name: type(module).__name__ for name, module in model.named_modules()}, output, tuple(recorder.made),
                 tuple(recorder.freed))


def capture_function(function: Callable[..., torch.Tensor], inputs: Sequence[tuple[TensorSpec, bool]],
                     passes: str) -> tuple[Op, ...]:
    """List the operators of one pass (forward or backward) of ``function`` on tensors of the given specs.

    Each input comes with whether it wants a gradient. Raises InputError with torch's reason when the shapes do not fit.
    """
    try:
        with FakeTensorMode():
            tensors = [torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype),
                                           requires_grad=wants and passes == "backward") for spec, wants in inputs]
            recorder = _Recorder({})
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
