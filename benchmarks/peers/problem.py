"""One decode problem: shape, page table, query and the BF16 K/V pool every competitor reads.

Used by every adapter and by the benchmark of our own kernel, so that all of them see the same query
rows, the same random page order and the same K/V values. A cell of a benchmark grid is one
`DecodeProblem`; nothing in it is timed.

Memory: a BF16 pool of 64 requests x 128K tokens x 8 heads is 34 GB, so only one layout of the pool
exists at a time. NHD and HND are permutations of the same values: `pool()` permutes when the pool
is small enough to hold both for a moment, else draws fresh values of the same distribution.
"""

from __future__ import annotations

import dataclasses

import torch

# Above this size a change of layout redraws the values instead of permuting them: the values then
# differ between layouts, which matters to a check (done at small sizes) and not to a timing.
kMaxPermutedPoolBytes = 16 << 30


@dataclasses.dataclass(frozen=True)
class DecodeShape:
    """Sizes of one decode step with one query token per request and equal lengths."""

    batch_size: int
    kv_len: int  # tokens per request
    num_qo_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 64

    def __post_init__(self) -> None:
        if self.num_qo_heads % self.num_kv_heads != 0:
            raise ValueError(
                f"num_qo_heads = {self.num_qo_heads} must be a multiple of"
                f" num_kv_heads = {self.num_kv_heads}"
            )
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} = {getattr(self, field.name)} must be >= 1")

    @property
    def gqa_group_size(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @property
    def pages_per_request(self) -> int:
        return -(-self.kv_len // self.page_size)

    @property
    def num_pages(self) -> int:
        return self.batch_size * self.pages_per_request

    @property
    def sm_scale(self) -> float:
        return self.head_dim**-0.5

    def kv_bytes(self, bytes_per_token_head: float) -> int:
        """Bytes of K and V that one step must read; BF16: bytes_per_token_head = 4 * head_dim."""
        return int(self.batch_size * self.kv_len * self.num_kv_heads * bytes_per_token_head)

    def label(self) -> str:
        return (
            f"{self.batch_size}x{self.kv_len} {self.num_qo_heads}/{self.num_kv_heads}"
            f" d{self.head_dim} p{self.page_size}"
        )


@dataclasses.dataclass(frozen=True)
class PageTable:
    """The page table in both forms in use; all int32, the last five on the device."""

    kv_indptr_host: torch.Tensor  # [batch + 1], pages, on the CPU
    kv_last_page_len_host: torch.Tensor  # [batch], tokens, on the CPU
    kv_indptr: torch.Tensor  # [batch + 1], pages
    kv_indices: torch.Tensor  # [batch * pages_per_request], page ids
    kv_last_page_len: torch.Tensor  # [batch], tokens, 1 .. page_size
    block_table: torch.Tensor  # [batch, pages_per_request], page ids
    seq_lens: torch.Tensor  # [batch], tokens


def make_page_table(shape: DecodeShape, device: torch.device, seed: int) -> PageTable:
    """Every page of the pool once, in random order: no request is contiguous."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(shape.num_pages, generator=generator).to(torch.int32)
    indptr = torch.arange(shape.batch_size + 1, dtype=torch.int32) * shape.pages_per_request
    last_page_len = shape.kv_len - (shape.pages_per_request - 1) * shape.page_size
    last = torch.full((shape.batch_size,), last_page_len, dtype=torch.int32)
    lens = torch.full((shape.batch_size,), shape.kv_len, dtype=torch.int32)
    return PageTable(
        kv_indptr_host=indptr,
        kv_last_page_len_host=last,
        kv_indptr=indptr.to(device),
        kv_indices=indices.to(device),
        kv_last_page_len=last.to(device),
        block_table=indices.view(shape.batch_size, shape.pages_per_request).to(device),
        seq_lens=lens.to(device),
    )


class DecodeProblem:
    """Query, page table and K/V values of one benchmark cell.

    `layout` is "HND" ([num_pages, 2, num_kv_heads, page_size, head_dim]) or "NHD"
    ([num_pages, 2, page_size, num_kv_heads, head_dim]); index 0 of dimension 1 is K, index 1 is V.
    """

    def __init__(self, shape: DecodeShape, device: str = "cuda", seed: int = 0) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self.table = make_page_table(shape, self.device, seed)
        self._generator = torch.Generator(device=self.device).manual_seed(seed)
        # [batch, num_qo_heads, head_dim]
        self.query = torch.randn(
            shape.batch_size,
            shape.num_qo_heads,
            shape.head_dim,
            generator=self._generator,
            device=self.device,
        ).to(torch.bfloat16)
        self._pool: torch.Tensor | None = None
        self._layout = ""

    def pool(self, layout: str) -> torch.Tensor:
        """The BF16 pool in the layout asked for; a pool returned earlier may become invalid."""
        if layout not in ("HND", "NHD"):
            raise ValueError(f'layout = "{layout}" must be "HND" or "NHD"')
        if self._pool is not None and self._layout != layout:
            bytes_ = self._pool.numel() * self._pool.element_size()
            permuted = bytes_ <= kMaxPermutedPoolBytes
            self._pool = self._pool.transpose(2, 3).contiguous() if permuted else None
        if self._pool is None:
            self._pool = self._draw(layout)
        self._layout = layout
        return self._pool

    def release(self) -> None:
        """Gives the pool's memory back; the next call of pool() draws new values."""
        self._pool = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def request_rows(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one request in token order, each [kv_len, num_kv_heads, head_dim], BF16."""
        pages = self.pool(self._layout or "HND")[self.table.block_table[request].long()]
        if self._layout == "HND":
            pages = pages.transpose(2, 3)
        # [pages_per_request, 2, page_size, num_kv_heads, head_dim] -> [2, tokens, heads, head_dim]
        rows = pages.transpose(0, 1).flatten(1, 2)[:, : self.shape.kv_len]
        return rows[0], rows[1]

    def reference(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Attention over the BF16 values, computed in `dtype`: [batch, num_qo_heads, head_dim]."""
        out = []
        for request in range(self.shape.batch_size):
            key, value = (rows.to(dtype) for rows in self.request_rows(request))
            out.append(attend(self.query[request].to(dtype), key, value, self.shape.sm_scale))
        return torch.stack(out)

    def _draw(self, layout: str) -> torch.Tensor:
        shape = self.shape
        inner = (
            (shape.num_kv_heads, shape.page_size)
            if layout == "HND"
            else (shape.page_size, shape.num_kv_heads)
        )
        pool = torch.empty(
            (shape.num_pages, 2, *inner, shape.head_dim), dtype=torch.bfloat16, device=self.device
        )
        # Page by page blocks keep every draw below 2^31 elements.
        step = max(1, (1 << 30) // pool[0].numel())
        for begin in range(0, shape.num_pages, step):
            pool[begin : begin + step].normal_(generator=self._generator)
        return pool


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sm_scale: float
) -> torch.Tensor:
    """One request in plain torch: query [Hq, D], key and value [tokens, Hkv, D] -> [Hq, D]."""
    num_kv_heads = key.shape[1]
    grouped = query.unflatten(0, (num_kv_heads, -1))  # [Hkv, group, D]
    logits = torch.einsum("hgd,thd->hgt", grouped, key) * sm_scale
    return torch.einsum("hgt,thd->hgd", logits.softmax(-1), value).flatten(0, 1)
