"""The operations as functions of torch tensors or numpy arrays.

Outside of a trace a torch call goes straight to the shared library; under torch.compile, and for
tensors without memory (fake, functional), it goes through the registered operator of the same name,
so both run one implementation. The library checks every argument before anything is written:
ValueError for a value, shape, stride or alignment, TypeError for a dtype or device,
NotImplementedError for what the chosen backend does not offer, RuntimeError when the device fails.
A message names the argument, what was given and what is allowed.
"""

from __future__ import annotations

from foscar import _library, _workspace
from foscar._arrays import (
    empty,
    is_plain_torch,
    is_torch,
    readable,
    require_array,
    require_writable,
    torch,
    zeros,
)


def decode(
    q,
    pool,
    *,
    format: str,
    head_dim: int,
    page_size: int,
    block_table=None,
    kv_len=None,
    kv_indptr=None,
    kv_indices=None,
    kv_last_page_len=None,
    out=None,
    lse=None,
    return_lse: bool = False,
    sm_scale: float = 0.0,
    causal: bool = True,
    kv_chunk_size: int = 0,
    workspace=None,
    backend: str = "",
):
    """Decode attention of each request's newest tokens over its pages of a low-bit cache.

    q           bfloat16 or float16, on the CPU also float32: [batch_size, num_qo_heads, head_dim]
                or [batch_size, qo_len, num_qo_heads, head_dim]; innermost contiguous
    pool        uint8 [num_pages, num_kv_heads, page_head_bytes(format, head_dim, page_size)]
    page table  int32 on the device of q, block_table [batch_size, max_pages] and
                kv_len [batch_size]; or kv_indptr [batch_size + 1], kv_indices [pages in use] and
                kv_last_page_len [batch_size]
    out         shape and dtype of q; allocated when not given
    lse         float32, the shape of q without head_dim: natural log of the sum of exp(logit)
    sm_scale    factor on q . k; 0 means 1 / sqrt(head_dim)
    causal      with several new tokens, row i sees the first kv_len - qo_len + i + 1 keys
    kv_chunk_size  tokens per piece, or 0 for a free choice; a fixed size makes a request's bits
                independent of its neighbours
    workspace   uint8 [decode_workspace_bytes()], zeros before its first use; calls that may run at
                the same time need one each. CUDA only; kept by the package when not given
    backend     a name of foscar.backends(), or "" for the best one

    Returns out, or (out, lse) when return_lse is set or lse was given. The rows of an empty request
    are 0 and -inf.
    """
    want_lse = return_lse or lse is not None
    if not is_plain_torch(q):
        if is_torch(q):
            return _decode_operator(
                q, pool, format, head_dim, page_size, block_table, kv_len, kv_indptr, kv_indices,
                kv_last_page_len, out, lse, return_lse, workspace, sm_scale, causal,
                kv_chunk_size, backend,
            )  # fmt: skip
        require_array("q", q)
        q, pool = readable(q), readable(pool)
        require_writable("out", out)
        require_writable("lse", lse)
        block_table, kv_len = readable(block_table), readable(kv_len)
        kv_indptr, kv_indices = readable(kv_indptr), readable(kv_indices)
        kv_last_page_len = readable(kv_last_page_len)
    try:
        if out is None:
            out = empty(q.shape, q.dtype, q)
        if lse is None and return_lse:
            lse = empty(q.shape[:-1], "float32", q)
        if workspace is None and is_torch(q):
            workspace = _workspace.for_call(torch, q, pool)
        _library.decode(
            q, pool, format, head_dim, page_size, block_table, kv_len, kv_indptr, kv_indices,
            kv_last_page_len, out, lse, workspace, sm_scale, causal, kv_chunk_size, backend,
        )  # fmt: skip
    except TypeError as error:
        raise _library.explained(error) from None
    return (out, lse) if want_lse else out


def _decode_operator(
    q, pool, format, head_dim, page_size, block_table, kv_len, kv_indptr, kv_indices,
    kv_last_page_len,
    out, lse, return_lse, workspace, sm_scale, causal, kv_chunk_size, backend,
):  # fmt: skip
    table = {
        "block_table": block_table,
        "kv_len": kv_len,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
    }
    options = {
        "workspace": workspace,
        "sm_scale": sm_scale,
        "causal": causal,
        "kv_chunk_size": kv_chunk_size,
        "backend": backend,
    }
    if out is None and lse is None:
        out, lse = torch.ops.foscar.decode(q, pool, format, head_dim, page_size, **table, **options)
        return (out, lse) if return_lse else out
    if out is None:
        out = q.new_empty(q.shape)
    if lse is None and return_lse:
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    torch.ops.foscar.decode_out(q, pool, format, head_dim, page_size, out, lse, **table, **options)
    return (out, lse) if lse is not None else out


def quantize_append(
    k,
    v,
    slot_mapping,
    pool,
    *,
    format: str,
    head_dim: int,
    page_size: int,
    backend: str = "",
) -> None:
    """Quantizes new rows into their slots of `pool`, in place.

    k, v          bfloat16, float16 or float32 [num_tokens, num_kv_heads, head_dim], innermost
                  contiguous
    slot_mapping  int32 or int64 [num_tokens]: page * page_size + position in the page; negative
                  entries are skipped, and no slot may appear twice
    pool          uint8 [num_pages, num_kv_heads, page_head_bytes]

    Only the rows' own codes and parameters change.
    """
    if not is_plain_torch(pool):
        if is_torch(pool):
            torch.ops.foscar.quantize_append(
                k, v, slot_mapping, pool, format, head_dim, page_size, backend=backend
            )
            return
        require_array("pool", pool)
        require_writable("pool", pool)
        k, v, slot_mapping = readable(k), readable(v), readable(slot_mapping)
    try:
        _library.quantize_append(k, v, slot_mapping, pool, format, head_dim, page_size, backend)
    except TypeError as error:
        raise _library.explained(error) from None


def dequantize(
    pool,
    *,
    format: str,
    head_dim: int,
    page_size: int,
    max_kv_len: int | None = None,
    dtype=None,
    block_table=None,
    kv_len=None,
    kv_indptr=None,
    kv_indices=None,
    kv_last_page_len=None,
    k_out=None,
    v_out=None,
    backend: str = "",
):
    """Every request's rows as numbers: k, v, both [batch_size, max_kv_len, num_kv_heads, head_dim].

    Pool and page table as in decode(). With k_out and v_out given, rows at and beyond a request's
    kv_len keep what they held; otherwise the result has max_kv_len rows of `dtype` (default:
    float32), and those rows are 0.
    """
    if (k_out is None) != (v_out is None):
        raise ValueError("k_out, v_out: got one of them, allowed both or neither")
    table = {
        "block_table": block_table,
        "kv_len": kv_len,
        "kv_indptr": kv_indptr,
        "kv_indices": kv_indices,
        "kv_last_page_len": kv_last_page_len,
    }
    require_array("pool", pool)
    if k_out is None:
        if max_kv_len is None:
            raise ValueError(
                "max_kv_len: got nothing, allowed the rows of the result (or give k_out and v_out)"
            )
        lengths = kv_len if kv_len is not None else kv_last_page_len
        if not hasattr(lengths, "shape"):
            raise ValueError(
                "table: got no page table, allowed (block_table, kv_len) or (kv_indptr, "
                "kv_indices, kv_last_page_len)"
            )
        if is_torch(pool) and not is_plain_torch(pool):
            return torch.ops.foscar.dequantize(
                pool, format, head_dim, page_size, max_kv_len, dtype or torch.float32, **table,
                backend=backend
            )  # fmt: skip
        shape = (lengths.shape[0], max_kv_len, pool.shape[1], head_dim)
        k_out = zeros(shape, dtype or "float32", pool)
        v_out = zeros(shape, dtype or "float32", pool)
    elif max_kv_len is not None or dtype is not None:
        raise ValueError("max_kv_len, dtype: got them beside k_out and v_out, which have them")
    elif is_torch(pool) and not is_plain_torch(pool):
        torch.ops.foscar.dequantize_out(
            pool, format, head_dim, page_size, k_out, v_out, **table, backend=backend
        )
        return k_out, v_out
    for name, array in (("k_out", k_out), ("v_out", v_out)):
        require_array(name, array)
        require_writable(name, array)
    try:
        _library.dequantize(
            readable(pool), format, head_dim, page_size, readable(block_table), readable(kv_len),
            readable(kv_indptr), readable(kv_indices), readable(kv_last_page_len), k_out, v_out,
            backend,
        )  # fmt: skip
    except TypeError as error:
        raise _library.explained(error) from None
    return k_out, v_out
