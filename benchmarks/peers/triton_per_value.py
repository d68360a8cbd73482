"""Adapter of the per-value-reconstruction kernel (triton_per_value_kernel.py) at 2 and 4 bits.

Token-wise groups over the whole head, FP32 scale and zero per token, KV head and side; the pool is
the problem's BF16 pool quantized slot by slot. `prepare` tries the published tiles and several
split counts on the device and keeps the fastest pair: the competitor is shown at its best.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from benchmarks.peers.problem import DecodeProblem, DecodeShape, attend
from benchmarks.peers.triton_per_value_kernel import decode_splits, merge_splits

kMaxPartialBytes = 1 << 30


@dataclasses.dataclass(frozen=True)
class Tile:
    """Block sizes of decode_splits; the three published ones, for growing batches."""

    block_n: int  # tokens
    block_h: int  # query heads
    num_warps: int
    num_stages: int = 3


kTiles = (Tile(128, 8, 4), Tile(64, 8, 2), Tile(32, 4, 1))
kWavesOfPrograms = (1, 2, 4, 8)  # split counts tried: this many programs per SM


class PerValueAdapter:
    is_baseline = False
    bf16_roundings = 10  # K and V: scale, zero, code - zero, product; then probabilities, output

    def __init__(self, name: str, bits: int) -> None:
        self.name = name
        self.bits = bits

    def supports(self, shape: DecodeShape) -> str:
        if shape.head_dim not in (64, 128, 256):
            return f"head_dim = {shape.head_dim}, this kernel takes 64, 128 and 256"
        return ""

    def prepare(self, problem: DecodeProblem) -> None:
        self._problem = problem
        self._out = torch.empty_like(problem.query)
        self._k_codes, self._k_params = self._quantize(problem, side=0)
        self._v_codes, self._v_params = self._quantize(problem, side=1)
        self._choose_launch()

    def run(self) -> None:
        self._launch(self._tile, self._num_splits)

    def output(self) -> torch.Tensor:
        return self._out

    def expected(self) -> torch.Tensor:
        problem, out = self._problem, []
        for request in range(problem.shape.batch_size):
            key = self._dequantized(self._k_codes, self._k_params, request)
            value = self._dequantized(self._v_codes, self._v_params, request)
            query = problem.query[request].float()
            out.append(attend(query, key, value, problem.shape.sm_scale))
        return torch.stack(out)

    def kv_bytes(self) -> int:
        row_bytes = self._problem.shape.head_dim * self.bits // 8
        return self._problem.shape.kv_bytes(2 * (row_bytes + 8))

    def release(self) -> None:
        self._problem = self._out = self._partial_o = self._partial_lse = None
        self._k_codes = self._k_params = self._v_codes = self._v_params = None

    def _quantize(self, problem: DecodeProblem, side: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes uint8 [num_slots, Hkv, row_bytes] and (scale, zero) FP32 [num_slots, Hkv, 2]."""
        shape = problem.shape
        num_slots, parts = shape.num_pages * shape.page_size, 8 // self.bits
        row_bytes = shape.head_dim // parts
        pool = problem.pool("NHD")
        codes = torch.empty(
            (shape.num_pages, shape.page_size, shape.num_kv_heads, row_bytes),
            dtype=torch.uint8,
            device=problem.device,
        )
        params = torch.empty((*codes.shape[:3], 2), dtype=torch.float32, device=problem.device)
        levels = (1 << self.bits) - 1
        step = max(1, (1 << 27) // pool[0, side].numel())  # 512 MB of FP32 at a time
        for begin in range(0, shape.num_pages, step):
            pages = slice(begin, begin + step)
            rows = pool[pages, side].float()
            low, high = rows.aminmax(dim=-1, keepdim=True)
            scale = ((high - low) / levels).clamp_min(1e-8)
            code = ((rows - low) / scale + 0.5).floor_().clamp_(0, levels).to(torch.uint8)
            code = code.unflatten(-1, (parts, row_bytes))
            packed = code[..., 0, :].clone()
            for position in range(1, parts):
                packed |= code[..., position, :] << (position * self.bits)
            codes[pages] = packed
            params[pages] = torch.cat((scale, -low / scale), dim=-1)
        return codes.flatten(0, 1), params.view(num_slots, shape.num_kv_heads, 2)

    def _dequantized(self, codes: torch.Tensor, params: torch.Tensor, request: int) -> torch.Tensor:
        """[kv_len, num_kv_heads, head_dim], FP32, from the exact FP32 parameters."""
        shape = self._problem.shape
        pages = self._problem.table.block_table[request].long()
        slot = pages[:, None] * shape.page_size + torch.arange(shape.page_size, device=pages.device)
        slot = slot.flatten()[: shape.kv_len]
        mask = (1 << self.bits) - 1
        parts = [(codes[slot] >> shift) & mask for shift in range(0, 8, self.bits)]
        scale, zero = params[slot].unsqueeze(-2).unbind(-1)
        return (torch.cat(parts, dim=-1).float() - zero) * scale

    def _split_counts(self, tile: Tile) -> list[int]:
        shape = self._problem.shape
        num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        head_blocks = shape.num_kv_heads * math.ceil(shape.gqa_group_size / tile.block_h)
        most = max(1, shape.kv_len // tile.block_n)
        row_bytes = self._out.numel() * 4
        most = max(1, min(most, kMaxPartialBytes // row_bytes))
        wanted = (waves * num_sms / (shape.batch_size * head_blocks) for waves in kWavesOfPrograms)
        return sorted({min(most, max(1, round(count))) for count in wanted})

    def _choose_launch(self) -> None:
        from benchmarks.timing import L2Flush, needs_flush, time_launch

        flush = L2Flush() if needs_flush(self.kv_bytes()) else None
        best = math.inf
        for tile in kTiles:
            for num_splits in self._split_counts(tile):
                self._allocate_partials(num_splits)
                launch = functools.partial(self._launch, tile, num_splits)
                timing = time_launch(launch, flush, runs=5, warmup=1)
                if timing.median_us < best:
                    best = timing.median_us
                    self._tile, self._num_splits = tile, num_splits
        self._allocate_partials(self._num_splits)

    def _allocate_partials(self, num_splits: int) -> None:
        batch, heads, head_dim = self._out.shape
        self._partial_o = torch.empty(
            (batch, heads, num_splits, head_dim), dtype=torch.float32, device=self._out.device
        )
        self._partial_lse = torch.empty(
            (batch, heads, num_splits), dtype=torch.float32, device=self._out.device
        )

    def _launch(self, tile: Tile, num_splits: int) -> None:
        problem, shape = self._problem, self._problem.shape
        head_blocks = shape.num_kv_heads * math.ceil(shape.gqa_group_size / tile.block_h)
        decode_splits[(shape.batch_size, head_blocks, num_splits)](
            problem.query,
            self._k_codes,
            self._v_codes,
            self._k_params,
            self._v_params,
            problem.table.block_table,
            problem.table.seq_lens,
            self._partial_o,
            self._partial_lse,
            shape.sm_scale * math.log2(math.e),
            shape.pages_per_request,
            num_splits,
            NUM_KV_HEADS=shape.num_kv_heads,
            GQA_GROUP=shape.gqa_group_size,
            HEAD_DIM=shape.head_dim,
            PAGE_SIZE=shape.page_size,
            BITS=self.bits,
            BLOCK_N=tile.block_n,
            BLOCK_H=tile.block_h,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
        merge_splits[(shape.batch_size * shape.num_qo_heads,)](
            self._partial_o, self._partial_lse, self._out, num_splits, HEAD_DIM=shape.head_dim
        )


def make(name: str) -> PerValueAdapter:
    return PerValueAdapter(name, bits=int(name.removeprefix("triton_int")))
