"""What sparse tensors store, in a capture.

Sparse matrices that a network holds stay real: torch's fake ones do not know how many elements they store. Operators of them
alone are computed, so their results know it too. A product of a sparse matrix and a fake one is a fake dense matrix.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

UNKNOWN = (-1, -1)
_SAME = frozenset(("t", "transpose", "detach", "alias", "clone", "_to_copy", "mul", "div", "neg", "_sparse_softmax"))
_MADE = "_sparse_coo_tensor_with_dims_and_tensors"
_PRODUCTS = ("mm", "addmm", "mv", "addmv", "bmm")


def tensors(values: Any) -> list[torch.Tensor]:
    """Return the sparse tensors among the leaves of a value."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided]


def is_constant(given: Any) -> bool:
    """Return whether an operator is given no tensor without values."""
    return not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(given))


def without_views(given: Any) -> Any:
    """Return an operator's arguments with copies of real sparse views, such as A.t(), which fake tensors do not take."""
    with unset_fake_temporarily():
        return tree_map(lambda item: item.detach().clone() if tensors(item) and item._is_view() and not isinstance(
            item, FakeTensor) else item, given)


def renamed(name: str, matrices: int) -> str:
    """Return an operator's name; a product with a sparse matrix, or of two, is another operator than that of dense ones."""
    space, short, *rest = name.split(".")
    dense = short.removeprefix("_sparse_")
    return ".".join([space, f"{'_sparse' * matrices}_{dense}", *rest]) if matrices and dense in _PRODUCTS else name


def _of_real(tensor: torch.Tensor) -> tuple[int, int]:
    with unset_fake_temporarily():
        if tensor.layout == torch.sparse_coo:
            values, indices = tensor._values(), [tensor._indices()]
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            values, indices = tensor.values(), [tensor.crow_indices(), tensor.col_indices()]
        else:
            values, indices = tensor.values(), [tensor.ccol_indices(), tensor.row_indices()]
    return values.numel(), sum(part.numel() * part.itemsize for part in (values, *indices))


class Stored:
    """The elements that each sparse tensor of a capture stores, and their bytes with those of the indices."""

    def __init__(self):
        self._known: dict[int, tuple[torch.Tensor, tuple[int, int]]] = {}  # the reference keeps an id from being used again

    def of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return elements and bytes; UNKNOWN where they depend on values of a fake tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, UNKNOWN if isinstance(tensor, FakeTensor) else _of_real(tensor)
        return self._known[id(tensor)][1]

    def follow(self, short: str, given: Any, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Note what fake results store, where the operator's arguments, with the sparse ``inputs`` among them, say so."""
        for result in tensors(results):
            if isinstance(result, FakeTensor) and short == _MADE:
                parts = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
                self._known[id(result)] = result, (parts[-1].numel(), sum(part.numel() * part.itemsize for part in parts))
            elif isinstance(result, FakeTensor) and short in _SAME and len(inputs) == 1:
                self._known[id(result)] = result, self.of(inputs[0])
