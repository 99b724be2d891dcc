"""Boosted trees as plain arrays: trained by LightGBM, evaluated by NumPy, so that a model file holds numbers and no program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

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
        nodes = len(self.feature)
        require(nodes == len(self.value) == len(self.right), f"{nodes} features, {len(self.value)} values and "
                f"{len(self.right)} children are no trees")
        require(len(self.roots) and self.roots.min() >= 0 and self.roots.max() < nodes, "a tree begins at no node")
        inner = np.flatnonzero(self.feature >= 0)
        require((self.feature >= _LEAF).all() and (self.right[inner] >= 1).all() and (inner + self.right[inner] < nodes).all(),
                "a split has no child")

    @classmethod
    def from_boosters(cls, boosters: Sequence[Any]) -> "Trees":
        """Take the trees of LightGBM boosters with numerical features and no missing values."""
        nodes = pd.concat(map(_nodes, boosters))
        return cls(nodes["feature"].to_numpy(np.int16), nodes["value"].to_numpy(np.float32), nodes["right"].to_numpy(np.uint16),
                   np.flatnonzero(nodes["is_root"]).astype(np.int32), len(boosters))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the mean output (n) of the ensembles for features (n, features)."""
        x = x.astype(np.float32)
        parts = [self._sums(x[begin:begin + _ROWS]) for begin in range(0, len(x), _ROWS)]
        return np.concatenate(parts) / self.ensembles if parts else np.zeros(0)

    def _sums(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of the trees' outputs (n): all rows walk down all trees at once, and those at a leaf drop out."""
        leaves = np.empty(len(self.roots) * len(x), np.float32)
        places, values = np.arange(len(leaves)), np.ascontiguousarray(x).ravel()
        row = np.tile(np.arange(len(x)) * x.shape[1], len(self.roots))
        node = np.repeat(self.roots.astype(np.intp), len(x))  # tree by tree: near nodes are near in memory
        while len(node):
            feature, value = self.feature.take(node), self.value.take(node)
            inner = feature != _LEAF
            node = node + np.where(values.take(row + feature) > value, self.right.take(node), inner)  # a leaf stays
            if np.count_nonzero(inner) <= _MOST_WALKING * len(node):
                leaves[places] = value
                places, row, node = places[inner], row[inner], node[inner]
        return leaves.reshape(-1, len(x)).sum(axis=0, dtype=float)


def _nodes(booster) -> pd.DataFrame:
    """Return feature, value, right child of every node in pre-order, and whether a tree begins there."""
    nodes = booster.trees_to_dataframe()
    leaf = nodes["split_feature"].isna()
    right = pd.Series(nodes.index, nodes["node_index"]).reindex(nodes["right_child"]).to_numpy() - nodes.index
    numbers = {name: number for number, name in enumerate(booster.feature_name())}
    return pd.DataFrame({"feature": nodes["split_feature"].map(numbers).fillna(_LEAF), "is_root": nodes["node_depth"] == 1,
                         "value": np.where(leaf, nodes["value"].to_numpy(np.float16), nodes["threshold"]),
                         "right": np.where(leaf, 0, right)})
