"""How wrong the model of GPUs was on families and cards that it had not seen, by question, and on changes of a condition."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lib import files
from lib.predict import held_out
from lib.predict.gpu import model
from lib.predict.gpu.levels import Condition
from lib.predict.held_out import ALL, FINAL, GAINS, NETWORKS, NEW_CARDS, RULE
from lib.predict.scores import score_draws, score_gains

TIMM, KERNELBENCH = "timm", "KernelBench"  # how the names of sources begin
_SAME = ["device", "source", "group", "case"]
_CHANGES = {"nchw": "nhwc", "eager": "compiled"}  # in the name of a condition
WHAT = {model.MEASURED: NETWORKS, model.NEW: NEW_CARDS}


def rows() -> pd.DataFrame:
    """Return the held-out rows of the model that ships, without those of the simple rule."""
    every = held_out.load(model.PATH)
    return every[~every["what"].isin([RULE, FINAL])]


def by_condition() -> Iterator[dict[str, Any]]:
    """Yield scores by device, what, mode, condition and source, by kind and together.

    ``baseline``: the mean error of the simple rule.
    """
    every, keys = held_out.load(model.PATH), ["device", "kind", "mode", "condition", "source"]
    every = pd.concat([every.assign(kind=ALL), every])
    is_rule = every["what"] == RULE
    rule = score_draws(every[is_rule], keys)[[*keys, "mape"]].rename(columns={"mape": "baseline"})
    scored = score_draws(every[~is_rule], [*keys, "what", "left_out"])
    yield from scored.merge(rule, how="left", on=keys).to_dict("records")


def gains() -> pd.DataFrame:
    """Return the gains of a change, to channels_last or to compiled, of networks that ran both ways: rows ``held_out``."""
    every, parts = rows(), []
    for name in every["condition"].unique():
        for old, new in _CHANGES.items():
            first = every[every["condition"] == name]
            second = every[every["condition"] == name.replace(old, new)]
            if old not in name or second.empty:
                continue
            both = first.merge(second, on=[*_SAME, "what"], suffixes=("_before", ""))
            shrunk = (both["batch_size"] / both["batch_size_before"]).astype(float).fillna(1.0)
            quotients = {end: both[f"{end}_before"] / both[end] * shrunk for end in ("measured", "predicted")}
            change = f"{name} to {name.replace(old, new)}"
            parts.append(both.assign(**quotients, what=GAINS, condition=change, low=np.nan, high=np.nan)[list(every)])
    return pd.concat(parts, ignore_index=True) if parts else every.iloc[:0]


def of_gains() -> Iterator[dict[str, Any]]:
    """Yield the scores of gains by device, condition and source."""
    keys = ["device", "what", "mode", "condition", "left_out", "source"]
    for line in score_draws(gains(), keys, score_gains).to_dict("records"):
        yield {**line, "kind": ALL, "baseline": line["constant_mape"]}


def like(device: str, scope: str, condition: Condition, kind: str = "") -> pd.DataFrame:
    """Return the held-out rows most like a question: of the device if it has some, of the same way and element size."""
    every = rows()
    alike = every[(every["what"] == WHAT[scope]) & every["condition"].str.startswith(condition.way)]
    bits = alike["condition"].str.contains("32").map({True: 32, False: 16})
    alike = alike[bits == condition.bits] if (bits == condition.bits).any() else alike
    own = alike[alike["device"] == device]
    alike = own if len(own) else alike
    of_kind = alike[alike["kind"] == kind]
    return of_kind if len(of_kind) else alike


@files.until_changed
def _change_words(_: Any) -> dict[tuple[str, str], str]:
    table, words = gains(), {}
    for condition, part in table[table["left_out"] == "families"].groupby("condition"):
        scored = score_gains(part)
        before, _, after = condition.partition(" to ")
        words[before, after] = (
            "learned from networks that ran both ways; with families left out, whether it is faster was right in "
            f"{scored['sign']:.0f} % of {scored['n']:,} cases (always: {scored['constant_sign']:.0f} %), its factor off by "
            f"{scored['mape']:.1f} % ({scored['constant_mape']:.1f} % were it one for all)")
    return words


def change_words(before: Condition, after: Condition) -> str:
    """Say how right gains of a change were; where none was held out, that it was not."""
    words = _change_words(held_out.path_of(model.PATH))
    return words.get((before.name, after.name), "predicted by the model of GPUs; no network that ran both ways was held out")
