"""torch's scaled_dot_product_attention, BF16 and FP32, over contiguous K and V.

Two ways to call it. "gqa" is the plain one. "heads as tokens" gives the query heads of a KV head as
tokens of one head, without a mask: the same sums, K and V read once for all of them, several times
faster on a CPU, and therefore the figure that is quoted.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.cpu_peers.problem import Problem, kHeadDim, kKvHeads, kQoHeads


class TorchSdpa:
    def __init__(self, dtype: str, form: str) -> None:
        self.kernel = f"torch {torch.__version__} sdpa, {form}"
        self.format = dtype
        self._dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        self._grouped = form == "heads as tokens"
        self.limit = 1e-2 if dtype == "bf16" else 1e-4  # a BF16 output rounds by 2^-9

    def prepare(self, problem: Problem) -> None:
        b = problem.batch_size
        sides = [
            torch.empty((b, kKvHeads, problem.kv_len, kHeadDim), dtype=self._dtype)
            for _ in range(2)
        ]
        for side, tensor in enumerate(sides):
            for request in range(b):
                bits = torch.from_numpy(problem.rows(request, side).view(np.int16))
                tensor[request] = bits.view(torch.bfloat16)
        self._k, self._v = sides
        q = torch.from_numpy(problem.query).to(self._dtype)
        self._q = q.view(b, kKvHeads, -1, kHeadDim) if self._grouped else q.unsqueeze(2)
        self._problem = problem
        self.kv_bytes = 2.0 * self._k.numel() * self._k.element_size()

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def run(self) -> None:
        self._out = torch.nn.functional.scaled_dot_product_attention(
            self._q, self._k, self._v, enable_gqa=not self._grouped
        )

    def error(self) -> float:
        return self._problem.error_of(self._out[0].reshape(kQoHeads, kHeadDim).float().numpy())

    def release(self) -> None:
        self._k = self._v = self._q = self._out = None
