"""Learns from labels of outsiders what kernels within networks, launches and gradients take; devices and families left out.

Rates are physical: one per kind of kernel, launch and gradient. What the labels of a board share (host, clock) is learned
beside them and left behind: no rate of a kind may stand for a slow host. A matrix product in fp32 takes as long within a
network as alone, so products have no rate. Where labels say otherwise, the model of that card's products is wrong: each board
has a factor on its products, which is left behind, too.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.predict.boards import Boards, Rates
from lib.predict.networks.sums import OVERLAP
from lib.predict.trust.scoreboard import SMALL_MS

GRADIENTS = ("input", "weights")
_LAUNCH_MS = {"forward": 0.025, "backward": 0.025, "sums": 0.008, "zeroing": 0.05}  # usual: autograd's own sums; two launches
_SPREADS = {"depthwise": 0.5, "grouped": 0.3, "memory": 0.15}  # of logs about the usual; of other kernels, launches, boards:
_SPREAD, _OF_LAUNCHES, _OF_BOARD, _OF_HOST = 0.1, 0.2, 0.2, 0.5
_OF_GRADIENTS, _NOISE = 0.33, 0.1
_PRODUCTS, _OF_PRODUCTS = "fp32 gemm ", 0.3  # kinds without a common rate; spread of a board's factor on them
_LEAST = 10  # labels of a board that tell its rates from those of kernels
_LEAST_PASS = 0.3  # share of a measured time that its passes take at least, whatever else it includes


def _logs(predicted: Callable, measured: np.ndarray, spreads: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the most probable logs of rates, expected within ``spreads`` of 0; ``predicted`` gives times from logs."""
    from scipy import optimize  # learning alone waits for it to load

    def errors(logs):
        return np.append(np.log(predicted(logs) / measured) / noise, logs / spreads)

    return optimize.least_squares(errors, np.zeros(len(spreads)), loss="soft_l1").x


def _of_networks(table: pd.DataFrame) -> Rates:
    """Learn from ``parts`` and ``measured_ms`` of networks, and what is ``beside``; large families count less."""
    kernels, launches = (pd.DataFrame([getattr(parts, name) for parts in table["parts"]]).fillna(0.0)
                         for name in ("kernels_ms", "launches"))
    is_product = kernels.columns.str.startswith(_PRODUCTS)
    products_ms, kernels = kernels.loc[:, is_product].sum(axis=1).to_numpy(), kernels.loc[:, kernels.any() & ~is_product]
    usual = {name: ms for name, ms in _LAUNCH_MS.items() if name in launches}
    boards, hosts = (table.groupby(keys).ngroup().to_numpy() for keys in (["source", "device", "dtype"], ["source", "device"]))
    spreads = [[next((spread for name, spread in _SPREADS.items() if name in kind), _SPREAD) for kind in kernels],
               [_OF_LAUNCHES] * len(usual), [_OF_BOARD] * (max(boards) + 1), [_OF_PRODUCTS] * (max(boards) + 1),
               [_OF_HOST] * (max(hosts) + 1)]
    kernels_ms, launches_ms = kernels.to_numpy(), launches[list(usual)].to_numpy() * list(usual.values())

    def split(logs):
        return np.split(np.exp(logs), np.cumsum([len(part) for part in spreads])[:-1])

    def predicted(logs):
        of_kernels, of_launches, of_boards, of_products, of_hosts = split(logs)
        computing_ms = (kernels_ms @ of_kernels + products_ms * of_products[boards]) * of_boards[boards]
        launching_ms = launches_ms @ of_launches * of_hosts[hosts]
        return (computing_ms ** OVERLAP + launching_ms ** OVERLAP) ** (1 / OVERLAP)

    ms = table["measured_ms"].astype(float)
    votes = table.groupby("source device dtype mode group".split())["device"].transform("size").to_numpy() ** 0.5
    of_kernels, of_launches, *_ = split(_logs(predicted, np.maximum(ms - table["beside"], _LEAST_PASS * ms).to_numpy(),
                                              np.concatenate(spreads), _NOISE * votes * (1 / votes).mean()))
    return Rates(dict(zip(kernels, of_kernels.tolist(), strict=True)),
                 {name: ms * float(rate) for (name, ms), rate in zip(usual.items(), of_launches, strict=True)})


def _of_gradients(table: pd.DataFrame) -> Rates:
    """Learn from ``parts`` (ms and features by gradient) and ``measured_ms`` of backward passes of convolutions."""
    absent = 0.0, np.zeros_like(next(iter(table["parts"].iloc[0].values()))[1])
    cells = [[parts.get(name, absent) for name in GRADIENTS] for parts in table["parts"]]
    ms, values = (np.array([[cell[place] for cell in row] for row in cells]) for place in (0, 1))

    def predicted(logs):
        return (ms * np.exp((values * logs.reshape(values.shape[1:])).sum(axis=2))).sum(axis=1)

    size = values[0].size
    logs = _logs(predicted, table["measured_ms"].to_numpy(float), np.full(size, _OF_GRADIENTS), np.full(len(table), _NOISE))
    return Rates(gradients=dict(zip(GRADIENTS, logs.reshape(values.shape[1:]), strict=True)))


def with_gradients(before: Boards, table: pd.DataFrame) -> Boards:
    """Add what backward passes of convolutions teach that take longer than launches; each device left out once."""
    if "parts" not in table:
        return before
    table = table[(table["error"] == "") & table["parts"].map(lambda parts: isinstance(parts, dict) and "weights" in parts)]
    table = table[np.sqrt(table["measured_ms"].astype(float) * table["predicted"]) >= SMALL_MS]
    left_out = {f"{device} ": _of_gradients(rest) for device in table["device"].unique()
                if len(rest := table[table["device"] != device])}
    return replace(before, rates=_of_gradients(table), left_out=left_out, sources=_sources(table)) if left_out else before


def with_networks(before: Boards, table: pd.DataFrame) -> Boards:
    """Add what networks on boards with ten labels or more teach; each device and family left out at once."""
    if "parts" not in table:
        return before
    table = table[(table["error"] == "") & table["parts"].notna()]
    table = table[table.groupby(["source", "device"])["device"].transform("size") >= _LEAST]
    left_out = {f"{device} {family}": _of_networks(rest)
                for device, family in set(zip(table["device"], table["group"], strict=True))
                if len(rest := table[(table["device"] != device) & (table["group"] != family)])}
    if not left_out:
        return before
    rates = replace(_of_networks(table), gradients=before.rates.gradients)
    return replace(before, rates=rates, left_out=before.left_out | left_out, sources=(*before.sources, *_sources(table)))


def _sources(table: pd.DataFrame) -> tuple[str, ...]:
    return tuple(sorted(set(table["source"])))
