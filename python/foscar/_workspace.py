"""Scratch for CUDA decodes whose caller brings none.

One buffer per device and stream, as large as the largest call so far: calls of one stream run one
after the other, so they can share it, and each leaves its counters at zero. A captured graph
replays on any stream and beside eager calls, so during a capture every call gets a zeroed buffer of
its own from the graph's memory; whoever captures many calls passes one workspace to all of them.
"""

from __future__ import annotations

from functools import lru_cache

from foscar import _library

_buffers: dict = {}


@lru_cache(maxsize=4096)
def needed_bytes(
    max_batch_size: int,
    qo_len: int,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device_index: int,
) -> int:
    return int(
        _library.decode_workspace_bytes(
            max_batch_size, qo_len, num_qo_heads, num_kv_heads, head_dim, True, device_index
        )
    )


def for_call(torch, q, pool):
    """The workspace of a decode of `q` over `pool`; None on the CPU."""
    if q.device.type != "cuda":
        return None
    shape = q.shape
    if q.dim() not in (3, 4) or pool.dim() != 3:
        return None  # the library names what is wrong
    index = q.device.index
    qo_len = shape[1] if q.dim() == 4 else 1
    needed = needed_bytes(shape[0], qo_len, shape[-2], pool.shape[1], shape[-1], index)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(needed, dtype=torch.uint8, device=q.device)
    key = (index, torch.cuda.current_stream(index).cuda_stream)
    buffer = _buffers.get(key)
    if buffer is None or buffer.shape[0] < needed:
        buffer = _buffers[key] = torch.zeros(needed, dtype=torch.uint8, device=q.device)
    return buffer
