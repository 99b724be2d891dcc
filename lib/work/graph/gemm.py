"""The families of GEMM, batched GEMM and attention."""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from lib.work.graph import counts, shapes
from lib.work.graph.family import Family, Params, names_in
from lib.work.graph.ops import Op, TensorSpec
from lib.work.graph.shapes import dense, matrix


def matrices(op: Op) -> tuple[TensorSpec, TensorSpec]:
    """Return the left and the right matrix, or batch of them, of a captured GEMM, which may have a bias before."""
    first = 1 if op.short in ("addmm", "baddbmm") else 0
    return op.args[first:first + 2]


def matmul(name: str, covers: str, names: Sequence[str], first: int) -> Family:
    """Build the family of a GEMM or batched GEMM; ``first`` is the place of its left matrix (1 behind a bias)."""
    batched = "batch" in names

    def build(p: Params, dtype: str):
        lead = (p["batch"],) if batched else ()
        left = matrix((*lead, p["gemm_m"], p["gemm_k"]), dtype, p["layout"][0] == "t")
        right = matrix((*lead, p["gemm_k"], p["gemm_n"]), dtype, p["layout"][1] == "t")
        if first:
            return torch.addmm, [(dense((p["gemm_n"],), dtype), True), (left, True), (right, True)]
        return (torch.bmm if batched else torch.mm), [(left, True), (right, True)]

    def read(op: Op) -> Params | None:
        left, right = matrices(op)
        lead = {"batch": left.shape[0]} if batched else {}
        return {**lead, "gemm_m": left.shape[-2], "gemm_k": left.shape[-1], "gemm_n": right.shape[-1],
                "layout": shapes.order(left) + shapes.order(right)}

    return Family(name, (*names, "layout"), names_in(covers), read, build, defaults=(("layout", "nt" if first else "nn"),),
                  texts=(("layout", ("nn", "nt", "tn", "tt")),))


def attention() -> Family:
    """Return the family of attention: scaled dot products, and torch's fused multi-head layer."""
    names = ("kind", "batch", "heads", "q_len", "kv_len", "head_dim")

    def build(p: Params, dtype: str):
        width = p["heads"] * p["head_dim"]
        if p["kind"] == "mha":
            def call(x, w, b, out_w, out_b):
                return torch._native_multi_head_attention(x, x, x, width, p["heads"], w, b, out_w, out_b, None, False)
            given = ((p["batch"], p["q_len"], width), (3 * width, width), (3 * width,), (width, width), (width,))
            return call, [(dense(shape, dtype), False) for shape in given]
        query, key, value = ((p["batch"], p["heads"], p[length], p["head_dim"]) for length in ("q_len", "kv_len", "kv_len"))

        def attend(*tensors):
            return F.scaled_dot_product_attention(*tensors)  # looked up when called: capture for CUDA replaces it
        return attend, [(dense(shape, dtype), True) for shape in (query, key, value)]

    def read(op: Op) -> Params | None:
        if op.short == "_native_multi_head_attention":
            query, key, width, heads = op.args[0], op.args[1], op.args[3], op.args[4]
            sizes = (query.shape[0], heads, query.shape[1], key.shape[1], width // heads)
            return dict(zip(names, ("mha", *sizes), strict=True))
        query, key = op.args[1:3] if op.short.endswith("backward") else op.args[:2]
        sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.shape[3])
        return dict(zip(names, ("sdpa", *sizes), strict=True))

    def check(p: Params) -> str:
        return "kind mha is self-attention: q_len and kv_len must be equal" if p["kind"] == "mha" and \
            p["q_len"] != p["kv_len"] else ""

    return Family("attention", names, frozenset(("_native_multi_head_attention", *counts.ATTENTION)), read, build, check,
                  (("kind", "sdpa"),), (("kind", ("sdpa", "mha")),))
