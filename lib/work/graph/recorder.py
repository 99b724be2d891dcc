"""Records every operator that torch dispatches below autograd, with its storages and the module that called for it.

Sparse matrices that a network holds stay real: fake ones do not know how many elements they store. Operators of them alone are
computed, so their sparse results know it too; dense results are fake. Of fake ones it is noted where shapes say it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lib.work.graph import counts
from lib.work.graph.ops import UNKNOWN, Op, TensorSpec

_NOT_WORK = ("prim.", "profiler.", "prims.")
_PARTS = {torch.sparse_coo: ("_values", "_indices"),
          **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("values", "crow_indices", "col_indices")),
          **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("values", "ccol_indices", "row_indices"))}
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
    known = counts.formula(func.__name__.partition(".")[0])
    return known is None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout in _PARTS


def _stored(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the elements that a sparse tensor stores, and their bytes with those of the indices; UNKNOWN of a fake one."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, "stored", UNKNOWN)
    with unset_fake_temporarily():
        parts = [getattr(tensor, name)() for name in _PARTS[tensor.layout]]
    return parts[0].numel(), sum(part.numel() * part.itemsize for part in parts)


def _said_by_shapes(short: str, given: tuple) -> tuple[int, int]:
    """Return what a fake sparse result of an operator stores, see ``_stored``, where shapes say it; else UNKNOWN."""
    if short == "_sparse_coo_tensor_with_dims_and_tensors":
        return given[4].elements, given[4].elements * given[4].itemsize + given[3].bytes
    if short == "_embedding_bag_backward" and given[-1] < 0:  # a row for each index; else those of padding are left out
        elements = given[1].elements * given[0].shape[-1]
        return elements, elements * given[0].itemsize + given[1].bytes
    return given[0].sparse if short in ("clone", "detach", "_coalesced_") else UNKNOWN


def _without_views(value: Any) -> Any:
    """Copy a real sparse view, such as A.t(), which fake tensors do not take beside them."""
    is_view = _is_sparse(value) and not isinstance(value, FakeTensor) and value._is_view()
    return value.detach().clone() if is_view else value


def _of_constants(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run an operator of real sparse matrices; in a capture its dense results are fake, and a whole matrix is not made."""
    to_dense = func.__name__.startswith("_to_dense") and torch.dtype not in map(type, args)  # which torch refuses
    whole = to_dense or kwargs.get("layout") is torch.strided  # of zeros_like, ...
    with unset_fake_temporarily() as mode:
        out = (torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device="meta") if mode and whole
               else func(*args, **kwargs))
    return out if mode is None else tree_map(lambda item: torch.empty_strided(
        item.shape, item.stride(), dtype=item.dtype) if isinstance(item, torch.Tensor) and not _is_sparse(item) else item, out)


class Recorder(TorchDispatchMode):
    """Lists every operator below autograd, the storages it touches and the module that called for it."""

    def __init__(self):
        super().__init__()
        self.ops: list[Op] = []
        self.module: list[str] = [""]
        self.phase = "forward"
        self._by_node: dict[int, str] = {}
        self._storages: dict[int, tuple[int, str, StorageWeakRef]] = {}
        self.bytes: Counter[str] = Counter()  # of the storages of each kind
        self._alive: dict[int, StorageWeakRef] = {}
        self.made: list[dict[int, int]] = []
        self.freed: list[tuple[int, ...]] = []

    def enter(self, tensor: torch.Tensor, kind: str) -> tuple[int, str, StorageWeakRef | None]:
        """Return number, kind and reference of a tensor's storage; a new one is entered as of ``kind``."""
        if _is_sparse(tensor):  # known by its id
            if -id(tensor) not in self._storages:
                self._storages[-id(tensor)] = (-1, kind, None)
                self.bytes[kind] += max(0, _stored(tensor)[1])
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
        stride, stored = ((1,) * value.dim(), _stored(value)) if _is_sparse(value) else (tuple(value.stride()), None)
        return TensorSpec(tuple(value.shape), stride, str(value.dtype).removeprefix("torch."), number, kind, stored)

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
        self.sweep()
        module, phase = self._where()
        given, named = list(args), dict(kwargs)
        for argument in func._schema.arguments[len(given):]:  # every positional one in its place: one form of one call
            if argument.kwarg_only or not (argument.name in named or argument.has_default_value()):
                break
            given.append(named.pop(argument.name, argument.default_value))
        given = _frozen(tree_map(self._spec, given))
        named = tuple(sorted((key, _frozen(tree_map(self._spec, value))) for key, value in named.items()))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        sparse = sum(map(_is_sparse, tensors))
        if sparse and (space := name.split("."))[1] in counts.PRODUCTS:  # another operator than that of dense matrices
            name = ".".join((space[0], f"{'_sparse' * sparse}_{space[1].removeprefix('_sparse_')}", *space[2:]))
        is_constant = sparse and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if sparse and not is_constant:
            with unset_fake_temporarily():
                args, kwargs = tree_map(_without_views, (args, kwargs))
        out = _of_constants(func, args, kwargs) if is_constant else func(*args, **kwargs)
        before, leaves = len(self._storages), [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if not (tensors or leaves):
            return out
        for leaf in (leaf for leaf in leaves if _is_sparse(leaf) and isinstance(leaf, FakeTensor)):
            leaf.stored = _said_by_shapes(name.split(".")[1], given)
        self.ops.append(Op(name, given, named, tuple(self._spec(leaf) for leaf in leaves), module, phase))
        made = {}  # the storages that are new; sizes are those of the whole storage
        for storage in (leaf.untyped_storage() for leaf in leaves if not _is_sparse(leaf)):
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
