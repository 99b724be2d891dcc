"""Records every operator that torch dispatches below autograd, with its storages and the module that called for it."""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lib.work.graph import counts
from lib.work.graph.ops import Op, TensorSpec

_NOT_WORK = ("prim.", "profiler.", "prims.")
_DEVICE_OF = torch.ops.prim.device.default  # answered at once: two of three calls of fake tensors ask for it
_READS = "aten._local_scalar_dense.default"  # a number read by the host: no work of an operator
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


@cache
def _is_work(name: str) -> bool:
    return not name.startswith(_NOT_WORK) and name != _READS


@cache
def _is_composite(func: Any) -> bool:
    """Return whether an operator is made of others, and its own FLOPs are not known: few are seen below autograd."""
    known = counts.formula(func.__name__.partition(".")[0])
    return known is None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _tensors(values: Iterable) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, also those inside of lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


class Recorder(TorchDispatchMode):
    """Lists every operator below autograd, the storages it touches and the module that called for it."""

    def __init__(self):
        super().__init__()
        self.ops: list[Op] = []
        self.module: list[str] = [""]
        self.phase = "forward"
        self._by_node: dict[int, str] = {}
        self._storages: dict[int, tuple[int, str, weakref.ref]] = {}  # those that are there, by address
        self._entered = 0
        self.bytes: Counter[str] = Counter()  # of the storages of each kind
        self._alive: set[int] = set()  # the storages that operators made
        self._died: list[int] = []  # of them, since the last operator
        self.made: list[dict[int, int]] = []
        self.freed: list[tuple[int, ...]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch would wrap each call to skip its compiler

    def enter(self, tensor: torch.Tensor, kind: str) -> tuple[int, str]:
        """Return number and kind of a tensor's storage; a new one is entered as of ``kind``."""
        if tensor.layout != torch.strided:
            raise RuntimeError("sparse tensors are not captured: use dense ones (nn.Embedding without sparse=True)")
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._storages:
            self._storages[address] = self._entered, kind, weakref.ref(storage, partial(self._leave, address))
            self._entered += 1
            self.bytes[kind] += storage.nbytes()
        return self._storages[address][:2]

    def _leave(self, address: int, _: weakref.ref) -> None:
        number, *_ = self._storages.pop(address)
        if number in self._alive:
            self._alive.remove(number)
            self._died.append(number)

    def _frozen(self, value: Any) -> Any:
        """Make an argument hashable: a tensor becomes its spec, a dtype, device, layout or memory format its name."""
        if isinstance(value, torch.Tensor):
            number, kind = self.enter(value, "activation")
            return TensorSpec(tuple(value.shape), value.stride(), str(value.dtype).removeprefix("torch."), number, kind)
        if isinstance(value, list | tuple):
            return tuple(self._frozen(item) for item in value)
        if isinstance(value, _NAMED):
            return f"{type(value).__name__}:{str(value).removeprefix('torch.')}"
        return None if isinstance(value, torch.Generator) else value

    def sweep(self) -> None:
        """Write down which storages died since the last operator: as in the real run, Python's references decide."""
        if len(self.freed) < len(self.ops):
            self.freed.append(tuple(sorted(self._died)))
            self._died.clear()

    def leaves_tensors(self) -> bool:
        """Return whether tensors that operators made are still there, somewhere: asked when nobody here refers to them."""
        return bool(self._alive)

    def _where(self) -> tuple[str, str]:
        """Return module and phase; a backward operator belongs to the module that made its autograd node."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._by_node.get(node._sequence_nr(), ""), "backward"
        # the newest node is this operator's own, or it has none and leaves that of an earlier one alone
        self._by_node.setdefault(torch.autograd._get_sequence_nr() - 1, self.module[-1])
        return self.module[-1], self.phase

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE_OF:
            return args[0].device
        kwargs, name = kwargs or {}, str(func)
        if not _is_work(name):
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        self.sweep()
        module, phase = self._where()
        given, named = list(args), dict(kwargs)
        for argument in func._schema.arguments[len(given):]:  # every positional one in its place: one form of one call
            if argument.kwarg_only or not (argument.name in named or argument.has_default_value()):
                break
            given.append(named.pop(argument.name, argument.default_value))
        specs = self._frozen(given)
        named_specs = tuple(sorted((key, self._frozen(value)) for key, value in named.items()))
        out = func(*args, **kwargs)
        before, results = self._entered, list(_tensors([out]))
        if results or any(True for _ in _tensors([*args, *kwargs.values()])):
            self.ops.append(Op(name, specs, named_specs, self._frozen(results), module, phase))
            self._note_made(results, before)
        return out

    def _note_made(self, results: list[torch.Tensor], before: int) -> None:
        """Note the storages that are new among an operator's results; sizes are those of the whole storage."""
        made = {}
        for result in results:
            number, _ = self.enter(result, "activation")
            if number >= before:
                made[number] = result.untyped_storage().nbytes()
        self._alive.update(made)
        self.made.append(made)


@contextmanager
def named_modules(model: nn.Module, recorder: Recorder, root: str = "") -> Iterator[None]:
    """Let the recorder know which module is running; ``root`` is the name of the model."""
    def enter(name: str):
        return lambda *_: recorder.module.append(name)

    def leave(*_) -> None:
        recorder.module.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules(prefix=root):
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield
