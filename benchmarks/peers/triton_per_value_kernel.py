"""A low-bit decode kernel that reconstructs every value, in Triton: what folding is compared with.

This is the shape of the published INT2/INT4 decode kernels: split-KV flash decoding in which each
code is shifted out of its byte, masked, converted to BF16, has the zero subtracted and is
multiplied by the scale, before an ordinary BF16 dot. A second kernel merges the splits.

    value = (code - zero) * scale;   byte j of a row, position p, is channel j + p * row_bytes

Called by triton_per_value.py. One (scale, zero) pair per token, KV head and side.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _reconstruct(codes, scale, zero, POSITION: tl.constexpr, BITS: tl.constexpr):
    """One position of every byte as BF16 values; scale and zero broadcast over the channels."""
    code = (codes >> (POSITION * BITS)) & ((1 << BITS) - 1)
    return (code.to(scale.dtype) - zero) * scale


# Shape-dependent integers are not specialized: every shape shares the compiled kernel of its tile.
@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def decode_splits(
    query,  # [batch, num_qo_heads, HEAD_DIM], BF16
    k_codes,  # uint8 [num_slots, NUM_KV_HEADS, ROW_BYTES]
    v_codes,  # as k_codes
    k_params,  # FP32 [num_slots, NUM_KV_HEADS, 2]: scale, zero
    v_params,  # as k_params
    block_table,  # int32 [batch, table_stride], page ids
    seq_lens,  # int32 [batch], tokens
    partial_o,  # FP32 [batch, num_qo_heads, num_splits, HEAD_DIM]
    partial_lse,  # FP32 [batch, num_qo_heads, num_splits], base 2
    sm_scale_log2,  # sm_scale * log2(e)
    table_stride,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GQA_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Grid (batch, NUM_KV_HEADS * ceil(GQA_GROUP / BLOCK_H), num_splits)."""
    ROW_BYTES: tl.constexpr = HEAD_DIM * BITS // 8
    HEAD_BLOCKS: tl.constexpr = (GQA_GROUP + BLOCK_H - 1) // BLOCK_H
    request, split = tl.program_id(0), tl.program_id(2)
    kv_head = tl.program_id(1) // HEAD_BLOCKS
    row = (tl.program_id(1) % HEAD_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H)
    row_mask = row < GQA_GROUP
    # [BLOCK_H], rows of query, partial_o and partial_lse
    head = (request * NUM_KV_HEADS + kv_head) * GQA_GROUP + row

    kv_len = tl.load(seq_lens + request)
    split_len = tl.cdiv(tl.cdiv(kv_len, num_splits), 32) * 32
    begin = split * split_len
    end = tl.minimum(begin + split_len, kv_len)

    byte = tl.arange(0, ROW_BYTES)
    q_at = query + head[:, None] * HEAD_DIM + byte[None, :]
    q0 = tl.load(q_at, mask=row_mask[:, None], other=0.0)
    q1 = tl.load(q_at + ROW_BYTES, mask=row_mask[:, None], other=0.0)
    acc0 = tl.zeros((BLOCK_H, ROW_BYTES), dtype=tl.float32)
    acc1 = tl.zeros((BLOCK_H, ROW_BYTES), dtype=tl.float32)
    if BITS == 2:
        q2 = tl.load(q_at + 2 * ROW_BYTES, mask=row_mask[:, None], other=0.0)
        q3 = tl.load(q_at + 3 * ROW_BYTES, mask=row_mask[:, None], other=0.0)
        acc2 = tl.zeros((BLOCK_H, ROW_BYTES), dtype=tl.float32)
        acc3 = tl.zeros((BLOCK_H, ROW_BYTES), dtype=tl.float32)
    row_max = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_H,), dtype=tl.float32)
    DTYPE: tl.constexpr = query.dtype.element_ty

    for first in range(begin, end, BLOCK_N):
        token = first + tl.arange(0, BLOCK_N)
        live = token < end
        page = tl.load(
            block_table + request * table_stride + token // PAGE_SIZE, mask=live, other=0
        )
        slot = page.to(tl.int64) * PAGE_SIZE + token % PAGE_SIZE
        entry = slot * NUM_KV_HEADS + kv_head

        codes = tl.load(
            k_codes + entry[None, :] * ROW_BYTES + byte[:, None], mask=live[None, :], other=0
        )
        scale = tl.load(k_params + entry * 2, mask=live, other=0.0).to(DTYPE)[None, :]
        zero = tl.load(k_params + entry * 2 + 1, mask=live, other=0.0).to(DTYPE)[None, :]
        logits = tl.dot(q0, _reconstruct(codes, scale, zero, 0, BITS))
        logits = tl.dot(q1, _reconstruct(codes, scale, zero, 1, BITS), logits)
        if BITS == 2:
            logits = tl.dot(q2, _reconstruct(codes, scale, zero, 2, BITS), logits)
            logits = tl.dot(q3, _reconstruct(codes, scale, zero, 3, BITS), logits)
        logits = tl.where(live[None, :], logits * sm_scale_log2, float("-inf"))

        # The first token of a block is live, so block_max is finite.
        block_max = tl.maximum(row_max, tl.max(logits, axis=1))
        rescale = tl.exp2(row_max - block_max)
        prob = tl.exp2(logits - block_max[:, None])
        row_sum = row_sum * rescale + tl.sum(prob, axis=1)
        row_max = block_max

        codes = tl.load(
            v_codes + entry[:, None] * ROW_BYTES + byte[None, :], mask=live[:, None], other=0
        )
        scale = tl.load(v_params + entry * 2, mask=live, other=0.0).to(DTYPE)[:, None]
        zero = tl.load(v_params + entry * 2 + 1, mask=live, other=0.0).to(DTYPE)[:, None]
        prob = prob.to(DTYPE)
        rescale = rescale[:, None]
        acc0 = tl.dot(prob, _reconstruct(codes, scale, zero, 0, BITS), acc0 * rescale)
        acc1 = tl.dot(prob, _reconstruct(codes, scale, zero, 1, BITS), acc1 * rescale)
        if BITS == 2:
            acc2 = tl.dot(prob, _reconstruct(codes, scale, zero, 2, BITS), acc2 * rescale)
            acc3 = tl.dot(prob, _reconstruct(codes, scale, zero, 3, BITS), acc3 * rescale)

    # A split without tokens leaves LSE -inf, and its partial output is not read.
    partial = head * num_splits + split
    tl.store(partial_lse + partial, row_max + tl.log2(row_sum), mask=row_mask)
    if begin < end:
        norm = 1.0 / row_sum[:, None]
        o_at = partial_o + partial[:, None].to(tl.int64) * HEAD_DIM + byte[None, :]
        tl.store(o_at, acc0 * norm, mask=row_mask[:, None])
        tl.store(o_at + ROW_BYTES, acc1 * norm, mask=row_mask[:, None])
        if BITS == 2:
            tl.store(o_at + 2 * ROW_BYTES, acc2 * norm, mask=row_mask[:, None])
            tl.store(o_at + 3 * ROW_BYTES, acc3 * norm, mask=row_mask[:, None])


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits(
    partial_o,  # FP32 [rows, num_splits, HEAD_DIM]
    partial_lse,  # FP32 [rows, num_splits], base 2
    out,  # [rows, HEAD_DIM], BF16
    num_splits,
    HEAD_DIM: tl.constexpr,
):
    """Grid (rows,), rows = batch * num_qo_heads: the softmax-weighted mean of the splits."""
    row = tl.program_id(0)
    channel = tl.arange(0, HEAD_DIM)
    row_max = float("-inf")
    row_sum = 0.0
    acc = tl.zeros((HEAD_DIM,), dtype=tl.float32)
    for split in range(num_splits):
        lse = tl.load(partial_lse + row * num_splits + split)
        if lse > float("-inf"):
            new_max = tl.maximum(row_max, lse)
            rescale = tl.exp2(row_max - new_max)
            weight = tl.exp2(lse - new_max)
            at = (row * num_splits + split).to(tl.int64) * HEAD_DIM
            acc = acc * rescale + weight * tl.load(partial_o + at + channel)
            row_sum = row_sum * rescale + weight
            row_max = new_max
    tl.store(out + row * HEAD_DIM + channel, (acc / row_sum).to(out.dtype.element_ty))
