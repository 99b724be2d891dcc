"""The families of GEMM, batched GEMM and attention."""

import torch
from torch.nn import functional as F

from lib.work.graph import counts, shapes
from lib.work.graph.family import Family, Params
from lib.work.graph.ops import Op, TensorSpec
from lib.work.graph.shapes import dense, matrix


def matrices(op: Op) -> tuple[TensorSpec, TensorSpec]:
    """Return the left and the right matrix, or batch of them, of a captured GEMM, which may have a bias before."""
    first = int(op.short in ("addmm", "baddbmm"))
    return op.args[first:first + 2]


def matmul(name: str, covers: str, batched: bool = False, bias: bool = False) -> Family:
    """Build the family of a GEMM or batched GEMM, with or without a bias."""
    def build(p: Params, dtype: str):
        lead = (p["batch"],) if batched else ()
        left = matrix((*lead, p["gemm_m"], p["gemm_k"]), dtype, p["layout"][0] == "t")
        right = matrix((*lead, p["gemm_k"], p["gemm_n"]), dtype, p["layout"][1] == "t")
        function = torch.addmm if bias else torch.bmm if batched else torch.mm
        return function, [*([(dense((p["gemm_n"],), dtype), True)] if bias else []), (left, True), (right, True)]

    def read(op: Op) -> tuple:
        left, right = matrices(op)
        lead = left.shape[:1] if batched else ()
        return (*lead, *left.shape[-2:], right.shape[-1], shapes.order(left) + shapes.order(right))

    return Family(name, (*["batch"] * batched, "gemm_m", "gemm_k", "gemm_n", "layout"), covers.split(), read, build,
                  defaults={"layout": "nt" if bias else "nn"}, texts={"layout": ("nn", "nt", "tn", "tt")})


def attention() -> Family:
    """Return the family of attention: scaled dot products, and torch's fused multi-head layer."""
    def build(p: Params, dtype: str):
        width = p["heads"] * p["head_dim"]
        if p["kind"] == "mha":
            def call(x, w, b, out_w, out_b):
                return torch._native_multi_head_attention(x, x, x, width, p["heads"], w, b, out_w, out_b, None, False)
            given = ((p["batch"], p["q_len"], width), (3 * width, width), (3 * width,), (width, width), (width,))
            return call, [(dense(shape, dtype), False) for shape in given]

        def attend(*tensors):
            return F.scaled_dot_product_attention(*tensors)  # looked up when called: capture for CUDA replaces it
        return attend, [(dense((p["batch"], p["heads"], p[length], p["head_dim"]), dtype), True)
                        for length in ("q_len", "kv_len", "kv_len")]

    def read(op: Op) -> tuple:
        if op.short == "_native_multi_head_attention":
            query, key, width, heads = op.args[0], op.args[1], op.args[3], op.args[4]
            return "mha", query.shape[0], heads, query.shape[1], key.shape[1], width // heads
        query, key = op.args[1:3] if op.is_backward else op.args[:2]
        return "sdpa", *query.shape[:3], key.shape[2], query.shape[3]

    def check(p: Params) -> str:
        uneven = p["kind"] == "mha" and p["q_len"] != p["kv_len"]
        return "kind mha is self-attention: q_len and kv_len must be equal" if uneven else ""

    return Family("attention", "kind batch heads q_len kv_len head_dim".split(),
                  ("_native_multi_head_attention", *counts.ATTENTION),
                  read, build, check, {"kind": "sdpa"}, {"kind": ("sdpa", "mha")})
