"""torch.ops.foscar.*: schemas, implementations, fake implementations.

What an operator writes is declared in its schema (Tensor(a!)), so torch.compile keeps the order of
appends and decodes. The workspace is not declared: each call leaves it as a later call needs it, so
nothing can be observed of it.
"""

from __future__ import annotations

import torch

from foscar import _library, _workspace

_TABLE = (
    "Tensor? block_table=None, Tensor? kv_len=None, Tensor? kv_indptr=None, "
    "Tensor? kv_indices=None, Tensor? kv_last_page_len=None"
)
_OPTIONS = (
    "Tensor? workspace=None, float sm_scale=0.0, bool causal=True, int kv_chunk_size=0, "
    "str backend=''"
)

_operators = torch.library.Library("foscar", "DEF")


def _define(schema: str, implementation, fake) -> None:
    name = schema[: schema.index("(")]
    _operators.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _operators.impl(name, implementation, key)
    torch.library.register_fake(f"foscar::{name}", fake, lib=_operators)


def _decode_out(
    q, pool, format, head_dim, page_size, out, lse=None, *, block_table=None, kv_len=None,
    kv_indptr=None,
    kv_indices=None, kv_last_page_len=None, workspace=None, sm_scale=0.0, causal=True,
    kv_chunk_size=0, backend="",
):  # fmt: skip
    if workspace is None:
        workspace = _workspace.for_call(torch, q, pool)
    _library.decode(
        q, pool, format, head_dim, page_size, block_table, kv_len, kv_indptr, kv_indices,
        kv_last_page_len,
        out, lse, workspace, sm_scale, causal, kv_chunk_size, backend,
    )  # fmt: skip


def _decode(q, pool, format, head_dim, page_size, **options):
    out = q.new_empty(q.shape)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    _decode_out(q, pool, format, head_dim, page_size, out, lse, **options)
    return out, lse


def _decode_fake(q, pool, format, head_dim, page_size, **options):
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _decode_out_fake(q, pool, format, head_dim, page_size, out, lse=None, **options):
    pass


_define(
    "decode(Tensor q, Tensor pool, str format, int head_dim, int page_size, *, "
    f"{_TABLE}, {_OPTIONS}) -> (Tensor out, Tensor lse)",
    _decode,
    _decode_fake,
)
_define(
    "decode_out(Tensor q, Tensor pool, str format, int head_dim, int page_size, Tensor(a!) out, "
    f"Tensor(b!)? lse=None, *, {_TABLE}, {_OPTIONS}) -> ()",
    _decode_out,
    _decode_out_fake,
)


def _quantize_append(k, v, slot_mapping, pool, format, head_dim, page_size, *, backend=""):
    _library.quantize_append(k, v, slot_mapping, pool, format, head_dim, page_size, backend)


def _quantize_append_fake(k, v, slot_mapping, pool, format, head_dim, page_size, *, backend=""):
    pass


_define(
    "quantize_append(Tensor k, Tensor v, Tensor slot_mapping, Tensor(a!) pool, str "
    "format, int head_dim, "
    "int page_size, *, str backend='') -> ()",
    _quantize_append,
    _quantize_append_fake,
)


def _dequantize_out(
    pool, format, head_dim, page_size, k_out, v_out, *, block_table=None, kv_len=None,
    kv_indptr=None,
    kv_indices=None, kv_last_page_len=None, backend="",
):  # fmt: skip
    _library.dequantize(
        pool, format, head_dim, page_size, block_table, kv_len, kv_indptr, kv_indices,
        kv_last_page_len,
        k_out, v_out, backend,
    )  # fmt: skip


def _dequantize_out_fake(pool, format, head_dim, page_size, k_out, v_out, **options):
    pass


def _rows(pool, head_dim, max_kv_len, dtype, kv_len=None, kv_last_page_len=None, **_):
    """Zeros for the rows of a dequantize: what lies beyond a request's length stays 0."""
    lengths = kv_len if kv_len is not None else kv_last_page_len
    if lengths is None:
        raise ValueError(
            "table: got no page table, allowed (block_table, kv_len) or (kv_indptr, "
            "kv_indices, kv_last_page_len)"
        )
    return pool.new_zeros((lengths.shape[0], max_kv_len, pool.shape[1], head_dim), dtype=dtype)


def _dequantize(pool, format, head_dim, page_size, max_kv_len, dtype, **options):
    k_out = _rows(pool, head_dim, max_kv_len, dtype, **options)
    v_out = torch.zeros_like(k_out)
    _dequantize_out(pool, format, head_dim, page_size, k_out, v_out, **options)
    return k_out, v_out


def _dequantize_fake(pool, format, head_dim, page_size, max_kv_len, dtype, **options):
    k_out = _rows(pool, head_dim, max_kv_len, dtype, **options)
    return k_out, torch.zeros_like(k_out)


_define(
    "dequantize(Tensor pool, str format, int head_dim, int page_size, SymInt "
    "max_kv_len, ScalarType dtype, *, "
    f"{_TABLE}, str backend='') -> (Tensor k, Tensor v)",
    _dequantize,
    _dequantize_fake,
)
_define(
    "dequantize_out(Tensor pool, str format, int head_dim, int page_size, Tensor(a!) "
    "k_out, Tensor(b!) v_out, *, "
    f"{_TABLE}, str backend='') -> ()",
    _dequantize_out,
    _dequantize_out_fake,
)
