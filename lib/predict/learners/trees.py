"""Boosted trees as plain arrays: trained by LightGBM, evaluated by NumPy, so that a model file holds numbers and no program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.predict.model_file import AtLeastOne, array, require

_ROWS = 2048  # rows that are evaluated at once: rows x trees indices have to fit into memory
_LEAF = -1
_MOST_WALKING = 0.8  # of rows x trees: with fewer on their way, those that arrived are dropped


@dataclass(frozen=True)
class Trees:
    """The mean of several boosted ensembles. All nodes lie one after another in pre-order: a left child follows its parent.

    ``feature`` (nodes) is the column that a node splits on, -1 for a leaf; ``value`` (nodes) its threshold (not greater goes
    left) or the leaf's output, in 16 bits; ``right`` (nodes) how far on the right child lies; ``roots`` (trees) where each tree
    begins. Features are compared in 32 bits, so boosters have to be trained on such.
    """

    feature: array()
    value: array()
    right: array()
    roots: array()
    ensembles: AtLeastOne

    def __post_init__(self):
        """Refuse nodes that are no trees: a child comes after its parent."""
        require(self.feature.ndim == 1 and self.feature.shape == self.value.shape == self.right.shape,
                f"nodes of shapes {self.feature.shape}, {self.value.shape}, {self.right.shape} are no trees")
        require(self.roots.ndim == 1 and len(self.roots) and (self.roots >= 0).all() and
                (self.roots < len(self.feature)).all(), "a tree begins at no node")
        inner = np.flatnonzero(self.feature >= 0)
        require((self.feature >= _LEAF).all() and (self.right[inner] >= 1).all() and
                (inner + self.right[inner] < len(self.feature)).all(), "a split has no child")

    @classmethod
    def from_boosters(cls, boosters: Sequence[Any]) -> "Trees":
        """Take the trees of LightGBM boosters with numerical features and no missing values."""
        nodes: list[tuple[int, float, int]] = []
        roots = []
        for booster in boosters:
            for number in range(booster.num_trees()):
                roots.append(len(nodes))
                tree = booster.dump_model(start_iteration=number, num_iteration=1)["tree_info"][0]["tree_structure"]
                nodes.extend(_flat(tree))
        feature, value, right = zip(*nodes, strict=True)
        return cls(np.array(feature, np.int16), np.array(value, np.float32), np.array(right, np.uint16),
                   np.array(roots, np.int32), len(boosters))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the mean output (n) of the ensembles for features (n, features)."""
        x = x.astype(np.float32)
        parts = [self._sums(x[begin:begin + _ROWS]) for begin in range(0, len(x), _ROWS)]
        return np.concatenate(parts) / self.ensembles if parts else np.zeros(0)

    def _sums(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of the trees' outputs (n): all rows walk down all trees at once, and those at a leaf drop out."""
        values, places = np.ascontiguousarray(x).ravel(), np.arange(len(x) * len(self.roots))
        row = np.tile(np.arange(len(x)) * x.shape[1], len(self.roots))
        node = np.repeat(self.roots.astype(np.intp), len(x))  # tree by tree: near nodes are near in memory
        leaf = node.copy()
        while True:
            feature = self.feature.take(node)
            inner = feature != _LEAF
            walking = np.count_nonzero(inner)
            if walking <= _MOST_WALKING * len(node):
                leaf[places] = node
                if not walking:
                    return self.value.take(leaf).reshape(-1, len(x)).sum(axis=0, dtype=float)
                moving = np.flatnonzero(inner)
                places, row, node, feature, inner = (values_.take(moving) for values_ in (places, row, node, feature, inner))
            goes_right = values.take(row + feature) > self.value.take(node)
            node += np.where(goes_right, self.right.take(node), inner)  # a leaf, whose ``right`` is 0, stays


def _flat(tree: dict[str, Any]) -> Iterator[tuple[int, float, int]]:
    """Yield feature, value and right child of every node of one tree in pre-order."""
    stack, made = [tree], []
    waiting: list[int] = []  # splits whose right child has not come yet, the innermost last
    while stack:
        node = stack.pop()
        if node == "right":
            split = waiting.pop()
            made[split][2] = len(made) - split
            continue
        if "leaf_value" in node:
            made.append([_LEAF, float(np.float16(node["leaf_value"])), 0])
            continue
        waiting.append(len(made))
        made.append([node["split_feature"], _not_above(node["threshold"]), 0])
        stack += [node["right_child"], "right", node["left_child"]]
    yield from map(tuple, made)


def _not_above(threshold: float) -> float:
    """Return the largest number of 32 bits that is not above ``threshold``: what it separates in 32 bits stays separated."""
    near = np.float32(threshold)
    return float(near if near <= threshold else np.nextafter(near, np.float32(-np.inf)))
