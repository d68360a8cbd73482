"""This library as an adapter: the low-bit cache made from the problem's BF16 values.

It calls libfoscar in the benchmark's process through the small C library of benchmarks/foscar_shim
(configure with -DFOSCAR_BUILD_BENCHMARKS=ON; the environment variable FOSCAR_SHIM names the file).
"""

from __future__ import annotations

import ctypes
import os

import torch

from benchmarks.peers.problem import DecodeProblem, DecodeShape, attend

kFormats = {
    "foscar_int2_f32": "k2v2-token-g128-f32",
    "foscar_int2_f16": "k2v2-token-g128-f16",
    "foscar_int4_f32": "k4v4-token-g128-f32",
    "foscar_int4_f16": "k4v4-token-g128-f16",
}
kDefaultShim = "build/release/bin/libfoscar_shim.so"


class _Cache(ctypes.Structure):
    """FoscarCache of shim.cc, field by field."""

    _fields_ = [
        ("format", ctypes.c_char_p),
        ("head_dim", ctypes.c_int),
        ("page_size", ctypes.c_int),
        ("num_kv_heads", ctypes.c_int),
        ("num_pages", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("kv_len", ctypes.c_void_p),
        ("batch_size", ctypes.c_int),
        ("max_pages", ctypes.c_int),
    ]


def _load() -> ctypes.CDLL:
    path = os.environ.get("FOSCAR_SHIM", kDefaultShim)
    try:
        library = ctypes.CDLL(os.path.abspath(path))
    except OSError as error:
        raise RuntimeError(f"FOSCAR_SHIM: cannot load {path}: {error}") from error
    for name in ("foscar_page_head_bytes", "foscar_workspace_bytes"):
        getattr(library, name).restype = ctypes.c_int64
    for name in ("foscar_append", "foscar_dequantize", "foscar_decode"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def _checked(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


class FoscarAdapter:
    is_baseline = False
    bf16_roundings = 1  # the output

    def __init__(self, name: str) -> None:
        self.name = name
        self.format = kFormats[name]
        self._library = _load()

    def supports(self, shape: DecodeShape) -> str:
        if self._block_bytes(shape) < 0:
            return f"{self.format} does not exist for head_dim {shape.head_dim}"
        return ""

    def _block_bytes(self, shape: DecodeShape) -> int:
        return self._library.foscar_page_head_bytes(
            self.format.encode(), shape.head_dim, shape.page_size
        )

    def prepare(self, problem: DecodeProblem) -> None:
        shape = problem.shape
        device = problem.device
        self._problem = problem
        self._pool = torch.empty(
            (shape.num_pages, shape.num_kv_heads, self._block_bytes(shape)),
            dtype=torch.uint8,
            device=device,
        )
        self._cache = _Cache(
            format=self.format.encode(),
            head_dim=shape.head_dim,
            page_size=shape.page_size,
            num_kv_heads=shape.num_kv_heads,
            num_pages=shape.num_pages,
            pool=self._pool.data_ptr(),
            block_table=problem.table.block_table.data_ptr(),
            kv_len=problem.table.seq_lens.data_ptr(),
            batch_size=shape.batch_size,
            max_pages=shape.pages_per_request,
        )
        self._quantize()
        self._out = torch.empty_like(problem.query)
        self._lse = torch.empty(problem.query.shape[:2], dtype=torch.float32, device=device)
        num_bytes = self._library.foscar_workspace_bytes(
            shape.batch_size, shape.num_qo_heads, shape.num_kv_heads, shape.head_dim
        )
        self._workspace = torch.zeros(num_bytes, dtype=torch.uint8, device=device)

    def _quantize(self) -> None:
        """Pages of the BF16 pool, block by block, as rows into the same pages of ours."""
        shape = self._problem.shape
        source = self._problem.pool("HND")
        step = max(1, (1 << 28) // source[0].numel())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for begin in range(0, shape.num_pages, step):
            pages = source[begin : begin + step]
            rows = pages.permute(1, 0, 3, 2, 4).flatten(1, 2).contiguous()
            slots = torch.arange(rows.shape[1], device=source.device) + begin * shape.page_size
            _checked(
                self._library.foscar_append(
                    ctypes.byref(self._cache),
                    _pointer(rows[0]),
                    _pointer(rows[1]),
                    _pointer(slots),
                    ctypes.c_int64(rows.shape[1]),
                    stream,
                )
            )
        torch.cuda.synchronize()

    def run(self) -> None:
        _checked(
            self._library.foscar_decode(
                ctypes.byref(self._cache),
                _pointer(self._problem.query),
                _pointer(self._out),
                _pointer(self._lse),
                self._problem.shape.num_qo_heads,
                _pointer(self._workspace),
                ctypes.c_int64(self._workspace.numel()),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
        )

    def output(self) -> torch.Tensor:
        return self._out

    def dequantized_rows(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one request as stored, FP32 [kv_len, num_kv_heads, head_dim]."""
        shape = self._problem.shape
        table = self._problem.table.block_table[request : request + 1].contiguous()
        length = self._problem.table.seq_lens[request : request + 1].contiguous()
        single = _Cache.from_buffer_copy(self._cache)
        single.block_table, single.kv_len, single.batch_size = (
            table.data_ptr(),
            length.data_ptr(),
            1,
        )
        rows = torch.empty(
            (2, shape.kv_len, shape.num_kv_heads, shape.head_dim),
            dtype=torch.float32,
            device=self._pool.device,
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _checked(
            self._library.foscar_dequantize(
                ctypes.byref(single),
                _pointer(rows[0]),
                _pointer(rows[1]),
                ctypes.c_int64(shape.kv_len),
                stream,
            )
        )
        torch.cuda.synchronize()
        return rows[0], rows[1]

    def expected_row(self, request: int) -> torch.Tensor:
        """Double-precision attention over the stored values: [num_qo_heads, head_dim]."""
        shape = self._problem.shape
        key, value = self.dequantized_rows(request)
        heads = []
        for head in range(shape.num_kv_heads):  # one KV head at a time bounds the memory
            group = shape.gqa_group_size
            query = self._problem.query[request, head * group : (head + 1) * group].double()
            heads.append(
                attend(
                    query,
                    key[:, head : head + 1].double(),
                    value[:, head : head + 1].double(),
                    shape.sm_scale,
                )
            )
        return torch.cat(heads)

    def expected(self) -> torch.Tensor:
        rows = [self.expected_row(b) for b in range(self._problem.shape.batch_size)]
        return torch.stack(rows).float()

    def kv_bytes(self) -> int:
        shape = self._problem.shape
        return (
            self._block_bytes(shape)
            * shape.num_kv_heads
            * shape.batch_size
            * shape.kv_len
            // shape.page_size
        )

    def release(self) -> None:
        self._pool = self._workspace = self._out = torch.empty(0)


def make(name: str) -> FoscarAdapter:
    return FoscarAdapter(name)
