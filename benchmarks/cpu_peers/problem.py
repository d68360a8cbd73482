"""The benchmark's problem and this library's decode, from libfoscar_cpu_shim (benchmarks/cpu)."""

from __future__ import annotations

import ctypes
import os

import numpy as np

kShim = "build/cpu/bin/libfoscar_cpu_shim.so"
kQoHeads, kKvHeads, kHeadDim = 32, 8, 128


def _load() -> ctypes.CDLL:
    path = os.path.abspath(os.environ.get("FOSCAR_CPU_SHIM", kShim))
    library = ctypes.CDLL(path)
    for name in ("foscar_problem_new", "foscar_problem_run"):
        getattr(library, name).restype = ctypes.c_char_p
    library.foscar_problem_query.restype = ctypes.c_void_p
    for name in ("error", "error_of", "bytes"):
        getattr(library, f"foscar_problem_{name}").restype = ctypes.c_double
    library.foscar_read_ceiling_gbps.restype = ctypes.c_double
    return library


shim = _load()


def checked(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Problem:
    """Queries, a BF16 cache and low-bit caches of the same values, pages of 64 in random order."""

    def __init__(self, batch_size: int, kv_len: int, formats: list[str]) -> None:
        self.batch_size, self.kv_len, self.formats = batch_size, kv_len, formats
        self.handle = ctypes.c_void_p()
        names = (ctypes.c_char_p * (len(formats) + 1))(*[f.encode() for f in formats], None)
        checked(shim.foscar_problem_new(batch_size, kv_len, names, ctypes.byref(self.handle)))
        count = batch_size * kQoHeads * kHeadDim
        words = (ctypes.c_uint16 * count).from_address(shim.foscar_problem_query(self.handle))
        # FP32 [batch, num_qo_heads, head_dim], exactly the BF16 values
        self.query = bf16_to_float(np.array(words)).reshape(batch_size, kQoHeads, kHeadDim)

    def rows(self, request: int, side: int) -> np.ndarray:
        """K (side 0) or V (1) of a request, BF16 bits [num_kv_heads, kv_len, head_dim]."""
        out = np.empty((self.kv_len, kKvHeads, kHeadDim), np.uint16)
        shim.foscar_problem_rows(self.handle, request, side, out.ctypes.data_as(ctypes.c_void_p))
        return np.ascontiguousarray(out.transpose(1, 0, 2))

    def error_of(self, output: np.ndarray) -> float:
        """Relative error of another library's output of request 0 against the BF16 cache."""
        o = np.ascontiguousarray(output, np.float32)
        return shim.foscar_problem_error_of(self.handle, o.ctypes.data_as(ctypes.c_void_p))

    def release(self) -> None:
        shim.foscar_problem_free(self.handle)


class Foscar:
    """This library: `format` is one of the problem's, or bf16 for its dense decode."""

    def __init__(self, backend: str, fmt: str) -> None:
        self.kernel, self.format = backend, fmt
        self.limit = 5e-4 if fmt != "bf16" else 1e-5

    def prepare(self, problem: Problem) -> None:
        self._problem = problem
        self._index = -1 if self.format == "bf16" else problem.formats.index(self.format)
        self._name = self.kernel.encode()
        self.kv_bytes = shim.foscar_problem_bytes(problem.handle, self._index)

    def set_threads(self, threads: int) -> None:
        os.environ["FOSCAR_NUM_THREADS"] = str(threads)

    def run(self) -> None:
        checked(shim.foscar_problem_run(self._problem.handle, self._index, self._name))

    def error(self) -> float:
        """Against double precision over the values of the same cache."""
        return shim.foscar_problem_error(self._problem.handle, self._index)

    def release(self) -> None:
        self._problem = None
