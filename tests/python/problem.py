"""A decode problem of random rows in shuffled pages, and attention over it in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import foscar
import torch


@dataclass
class Problem:
    lengths: list[int]
    format: str = "k4v4-token-g128-f32"
    num_qo_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 128
    page_size: int = 16
    qo_len: int = 1
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"
    seed: int = 0
    # "random": N(0, 1) rows. "tracer": every key is 0 and value t is t, so the output is the mean
    # of what is visible.
    rows: str = "random"
    q: torch.Tensor = field(init=False)
    pool: torch.Tensor = field(init=False)
    block_table: torch.Tensor = field(init=False)
    kv_len: torch.Tensor = field(init=False)
    k: list[torch.Tensor] = field(init=False)  # per request [length, num_kv_heads, head_dim]
    v: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        pages = [-(-length // self.page_size) for length in self.lengths]
        order = torch.randperm(sum(pages) + 2, generator=generator, dtype=torch.int32)
        table = torch.full((len(pages), max([1, *pages])), -1, dtype=torch.int32)  # -1: never read
        begin = 0
        for request, count in enumerate(pages):
            table[request, :count] = order[begin : begin + count]
            begin += count
        self.block_table = table.to(self.device)
        self.kv_len = torch.tensor(self.lengths, dtype=torch.int32, device=self.device)
        block = foscar.page_head_bytes(self.format, self.head_dim, self.page_size)
        # 0xFF everywhere: unused slots hold NaN parameters.
        self.pool = torch.full(
            (sum(pages) + 2, self.num_kv_heads, block), 255, dtype=torch.uint8, device=self.device
        )

        def normal(*shape):
            return torch.randn(shape, generator=generator).to(self.dtype).to(self.device)

        tokens = (self.qo_len,) if self.qo_len > 1 else ()
        self.q = normal(len(pages), *tokens, self.num_qo_heads, self.head_dim)
        self.k, self.v = [], []
        for request, length in enumerate(self.lengths):
            shape = (length, self.num_kv_heads, self.head_dim)
            if self.rows == "tracer":
                ramp = torch.arange(length, dtype=torch.float32, device=self.device)
                self.k.append(torch.zeros(shape, device=self.device))
                self.v.append(ramp[:, None, None].expand(shape).contiguous())
            else:
                self.k.append(normal(*shape))
                self.v.append(normal(*shape))
            foscar.quantize_append(
                self.k[-1], self.v[-1], self.slots(request, 0, length), self.pool, **self.cache
            )

    @property
    def cache(self) -> dict:
        return {"format": self.format, "head_dim": self.head_dim, "page_size": self.page_size}

    @property
    def table(self) -> dict:
        return {"block_table": self.block_table, "kv_len": self.kv_len}

    def csr(self) -> dict:
        """The same page table as CSR tensors."""
        pages = [-(-length // self.page_size) for length in self.kv_len.tolist()]
        indices = torch.cat([self.block_table[b, :n] for b, n in enumerate(pages)])
        indptr = torch.tensor([0, *pages], device=self.device).cumsum(0).to(torch.int32)
        last = (
            self.kv_len
            - (torch.tensor(pages, device=self.device) - 1).clamp(min=0) * self.page_size
        )
        return {
            "kv_indptr": indptr,
            "kv_indices": indices,
            "kv_last_page_len": last.to(torch.int32),
        }

    def slots(self, request: int, begin: int, end: int) -> torch.Tensor:
        token = torch.arange(begin, end, device=self.device)
        pages = self.block_table[request].long()[token // self.page_size]
        return pages * self.page_size + token % self.page_size

    def decode(self, **options):
        return foscar.decode(self.q, self.pool, **{**self.cache, **self.table, **options})

    def expected(self, pool: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) in double precision over the dequantized rows."""
        pool = self.pool if pool is None else pool
        k, v = foscar.dequantize(
            pool, max_kv_len=max(self.kv_len.tolist()), **self.table, **self.cache
        )
        q = self.q.double() if self.q.dim() == 4 else self.q.double()[:, None]
        group = self.num_qo_heads // self.num_kv_heads
        k = k.double().repeat_interleave(group, 2)
        v = v.double().repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bihj", q, k) / math.sqrt(self.head_dim)
        key = torch.arange(k.shape[1], device=self.device)
        row = torch.arange(q.shape[1], device=self.device)
        last = self.kv_len[:, None] - q.shape[1] + row  # the newest key that row i sees
        hidden = key > last[:, :, None]
        scores = scores.masked_fill(hidden[:, :, None], -math.inf)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
        out = torch.einsum("bihj,bjhd->bihd", weights, v)
        return (out, lse) if self.q.dim() == 4 else (out[:, 0], lse[:, 0])

    def check(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
        """The bounds of tests/cpp/oracle.h: output rounding plus what the backend's arithmetic may
        add.
        """
        expected_out, expected_lse = self.expected()
        rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}[out.dtype]
        bound = 3e-3 if out.is_cuda else 5e-4 + rounding
        error = (out.double() - expected_out).norm(dim=-1)
        size = expected_out.norm(dim=-1)
        assert (error <= 2 * bound * size).all(), (error / size).max()
        assert error.norm() <= bound * size.norm(), error.norm() / size.norm()
        if lse is not None:
            torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-4)
