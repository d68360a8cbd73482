"""llama.cpp's flash attention over its f16, q8_0 and q4_0 KV caches (benchmarks/cpu/ggml)."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from benchmarks.cpu_peers.problem import Problem, bf16_to_float, kHeadDim, kKvHeads, kQoHeads

kLibrary = "build/cpu/bin/libfoscar_ggml_peer.so"


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(os.path.abspath(os.environ.get("FOSCAR_GGML_PEER", kLibrary)))
    library.ggml_peer_new.restype = ctypes.c_void_p
    library.ggml_peer_output.restype = ctypes.POINTER(ctypes.c_float)
    library.ggml_peer_bytes.restype = ctypes.c_double
    return library


class GgmlFlash:
    # Against the BF16 values: FP16 sums over thousands of tokens; 8 and 4 bits of quantization.
    kLimits = {"f16": 0.2, "q8_0": 0.2, "q4_0": 0.5}

    def __init__(self, cache_type: str) -> None:
        self.kernel = "llama.cpp flash attention"
        self.format = cache_type
        self.limit = self.kLimits[cache_type]
        self._library = _load()

    def prepare(self, problem: Problem) -> None:
        lib = self._library
        self._problem = problem
        self._peer = ctypes.c_void_p(
            lib.ggml_peer_new(
                self.format.encode(),
                problem.batch_size,
                problem.kv_len,
                kQoHeads,
                kKvHeads,
                kHeadDim,
            )
        )
        lib.ggml_peer_set_query(self._peer, problem.query.ctypes.data_as(ctypes.c_void_p))
        for side in range(2):
            for request in range(problem.batch_size):
                rows = bf16_to_float(problem.rows(request, side))
                pointer = rows.ctypes.data_as(ctypes.c_void_p)
                lib.ggml_peer_set_rows(self._peer, request, side, pointer)
        self.kv_bytes = lib.ggml_peer_bytes(self._peer)

    def set_threads(self, threads: int) -> None:
        self._threads = threads

    def run(self) -> None:
        status = self._library.ggml_peer_run(self._peer, self._threads)
        if status != 0:
            raise RuntimeError(f"ggml_graph_compute: status {status}")

    def error(self) -> float:
        shape = (self._problem.batch_size, kQoHeads, kHeadDim)
        output = np.ctypeslib.as_array(self._library.ggml_peer_output(self._peer), shape)
        return self._problem.error_of(output[0])

    def release(self) -> None:
        self._library.ggml_peer_free(self._peer)
