"""The installed package in an environment that has neither torch nor a GPU: imports, answers,
decodes numpy arrays.

Run by scripts/python_package.sh before torch is installed beside it.
"""

from __future__ import annotations

import importlib.util
import sys

import foscar
import numpy

HEAD_DIM, PAGE_SIZE, FORMAT = 128, 16, "k4v4-token-g128-f32"

if importlib.util.find_spec("torch") is not None:
    sys.exit("this check is for an environment without torch")
assert foscar.supported(FORMAT), foscar.supported(FORMAT).reason
assert any(backend.device == "cpu" and backend.available for backend in foscar.backends())

# Every key is 0 and value t is t: the output is the mean of what is visible.
length, num_kv_heads = 37, 2
cache = {"format": FORMAT, "head_dim": HEAD_DIM, "page_size": PAGE_SIZE}
pool = numpy.zeros(
    (3, num_kv_heads, foscar.page_head_bytes(FORMAT, HEAD_DIM, PAGE_SIZE)), numpy.uint8
)
values = numpy.arange(length, dtype=numpy.float32)[:, None, None]
rows = numpy.ascontiguousarray(numpy.broadcast_to(values, (length, num_kv_heads, HEAD_DIM)))
foscar.quantize_append(numpy.zeros_like(rows), rows, numpy.arange(length), pool, **cache)
out, lse = foscar.decode(
    numpy.ones((1, 8, HEAD_DIM), numpy.float16),
    pool,
    block_table=numpy.arange(3, dtype=numpy.int32)[None],
    kv_len=numpy.array([length], numpy.int32),
    return_lse=True,
    **cache,
)
assert numpy.allclose(out, (length - 1) / 2, rtol=2**-10), out
assert numpy.allclose(lse, numpy.log(length), rtol=2**-20), lse
print(f"foscar {foscar.__version__}: imports and decodes without torch")
