"""Records every operator that torch dispatches below autograd, with its storages and the module that called for it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lib.work.graph import counts, sparse
from lib.work.graph.ops import Op, TensorSpec

_NOT_WORK = ("prim.", "profiler.", "prims.")
_READS = "aten._local_scalar_dense.default"  # a number read by the host: no work of an operator


def _frozen(value: Any) -> Any:
    """Make an argument hashable; dtypes, devices, layouts and memory formats become their names."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return f"{type(value).__name__}:{str(value).removeprefix('torch.')}"
    if isinstance(value, torch.Generator):
        return None
    return value


@cache
def _is_composite(func: Any) -> bool:
    """Return whether an operator is made of others, and its own FLOPs are not known: few are seen below autograd."""
    if counts.is_known(func.__name__.partition(".")[0]):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


class Recorder(TorchDispatchMode):
    """Lists every operator below autograd, the storages it touches and the module that called for it."""

    def __init__(self):
        super().__init__()
        self.ops: list[Op] = []
        self.module: list[str] = [""]
        self.phase = "forward"
        self._by_node: dict[int, str] = {}
        self._storages: dict[int, tuple[int, str, StorageWeakRef]] = {}
        self._stored = sparse.Stored()
        self.bytes: Counter[str] = Counter()  # of the storages of each kind
        self._alive: dict[int, StorageWeakRef] = {}
        self.made: list[dict[int, int]] = []
        self.freed: list[tuple[int, ...]] = []

    def enter(self, tensor: torch.Tensor, kind: str) -> tuple[int, str, StorageWeakRef | None]:
        """Return number, kind and reference of a tensor's storage; a new one is entered as of ``kind``.

        A sparse tensor has none: it is known by its id.
        """
        if tensor.layout != torch.strided:
            if -id(tensor) not in self._storages:
                self._storages[-id(tensor)] = (-1, kind, None)
                self.bytes[kind] += max(0, self._stored.of(tensor)[1])
            return self._storages[-id(tensor)]
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            # the weak reference keeps the address from being used again
            self._storages[key] = (len(self._storages), kind, StorageWeakRef(storage))
            self.bytes[kind] += storage.nbytes()
        return self._storages[key]

    def _spec(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        number, kind, _ = self.enter(value, "activation")
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided:
            return TensorSpec(tuple(value.shape), (1,) * value.dim(), dtype, number, kind, self._stored.of(value))
        return TensorSpec(tuple(value.shape), tuple(value.stride()), dtype, number, kind)

    def sweep(self) -> None:
        """Write down which storages died since the last operator: as in the real run, Python's references decide."""
        if len(self.freed) < len(self.ops):
            dead = tuple(number for number, reference in self._alive.items() if reference.expired())
            for number in dead:
                del self._alive[number]
            self.freed.append(dead)

    def leaves_tensors(self) -> bool:
        """Return whether tensors that operators made are still there, somewhere: asked when nobody here refers to them."""
        return any(not reference.expired() for reference in self._alive.values())

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
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        held = sparse.tensors((args, kwargs))
        if held and sparse.is_constant((args, kwargs)):
            with unset_fake_temporarily():
                return self._record(name, func, args, kwargs, held)
        return self._record(name, func, args, kwargs, held)

    def _record(self, name: str, func: Any, args: tuple, kwargs: dict[str, Any], held: list[torch.Tensor]) -> Any:
        """Run an operator, given ``held`` of sparse tensors, and list it; without tensors it is no work of a device."""
        self.sweep()
        module, phase = self._where()
        given, named = list(args), dict(kwargs)
        for argument in func._schema.arguments[len(given):]:  # every positional one in its place: one form of one call
            if argument.kwarg_only or not (argument.name in named or argument.has_default_value()):
                break
            given.append(named.pop(argument.name, argument.default_value))
        given = _frozen(tree_map(self._spec, given))
        named = tuple(sorted((key, _frozen(tree_map(self._spec, value))) for key, value in named.items()))
        if held:
            args, kwargs = sparse.without_views((args, kwargs))
        out = func(*args, **kwargs)
        before, leaves = len(self._storages), [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if any(leaf.layout != torch.strided for leaf in leaves):
            self._stored.follow(func.__name__.partition(".")[0], (args, kwargs), held, leaves)
        op = Op(sparse.renamed(name, len(held)), given, named, tuple(self._spec(leaf) for leaf in leaves), module, phase)
        if not (op.tensors or leaves):
            return out
        self.ops.append(op)
        made = {}  # the storages that are new; sizes are those of the whole storage
        for storage in (leaf.untyped_storage() for leaf in leaves if leaf.layout == torch.strided):
            number, _, reference = self._storages[storage._cdata]
            if number >= before:
                made[number], self._alive[number] = storage.nbytes(), reference
        self.made.append(made)
        return out


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
