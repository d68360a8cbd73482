"""torch's scaled_dot_product_attention on contiguous BF16 K/V: a time to set beside the paged ones.

It needs one dense [batch, num_kv_heads, kv_len, head_dim] tensor per side, which no serving cache
has, and is therefore never the baseline.
"""

from __future__ import annotations

import torch

from benchmarks.peers.problem import DecodeProblem, DecodeShape, attend


class SdpaAdapter:
    name = "sdpa"
    is_baseline = False
    bf16_roundings = 2  # probabilities, output

    def supports(self, shape: DecodeShape) -> str:
        return ""

    def prepare(self, problem: DecodeProblem) -> None:
        shape = problem.shape
        self._shape = shape
        # Own values: gathering the pool's would need pool and copy at the same time.
        generator = torch.Generator(device=problem.device).manual_seed(1)
        self._key, self._value = (
            torch.empty(
                (shape.batch_size, shape.num_kv_heads, shape.kv_len, shape.head_dim),
                dtype=torch.bfloat16,
                device=problem.device,
            )
            for _ in range(2)
        )
        for request in range(shape.batch_size):
            self._key[request].normal_(generator=generator)
            self._value[request].normal_(generator=generator)
        self._query = problem.query.unsqueeze(2)  # [batch, num_qo_heads, 1, head_dim]
        self._out = torch.empty(0)

    def run(self) -> None:
        self._out = torch.nn.functional.scaled_dot_product_attention(
            self._query, self._key, self._value, scale=self._shape.sm_scale, enable_gqa=True
        )

    def output(self) -> torch.Tensor:
        return self._out.squeeze(2)

    def expected(self) -> torch.Tensor:
        rows = [
            attend(
                self._query[request, :, 0].float(),
                self._key[request].transpose(0, 1).float(),
                self._value[request].transpose(0, 1).float(),
                self._shape.sm_scale,
            )
            for request in range(self._shape.batch_size)
        ]
        return torch.stack(rows)

    def kv_bytes(self) -> int:
        return self._shape.kv_bytes(4 * self._shape.head_dim)

    def release(self) -> None:
        self._key = self._value = self._query = self._out = None


def make(name: str) -> SdpaAdapter:
    return SdpaAdapter()
