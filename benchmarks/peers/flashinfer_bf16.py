"""FlashInfer's BF16 paged decode paths that run on Hopper, one adapter each.

Two kernels can be the fastest and both are tried in both page layouts: the FlashAttention-2 kernel
with tensor cores (plan/run wrapper) and XQA (block table and lengths, no plan). The CUDA-core
decode kernel is shown beside them only: with several query heads per KV head it is compute bound,
so it must never be quoted as the baseline.

The modules can be compiled ahead of time, see prebuild_flashinfer.py.
"""

from __future__ import annotations

import torch

from benchmarks.peers.problem import DecodeProblem, DecodeShape

kWorkspaceBytes = 128 << 20  # the size FlashInfer recommends; must be zero at first use
kXqaPageSizes = (16, 32, 64, 128)
kFa2HeadDims = (64, 128, 256)


class _FlashInferAdapter:
    """What the paths share: workspace, output, the pool as a (K, V) pair of views."""

    is_baseline = True
    bf16_roundings = 2  # probabilities, output

    def __init__(self, name: str, layout: str) -> None:
        self.name = name
        self.layout = layout
        self._problem: DecodeProblem | None = None

    def _allocate(self, problem: DecodeProblem) -> None:
        self._problem = problem
        pool = problem.pool(self.layout)
        self._kv = (pool[:, 0], pool[:, 1])
        self._out = torch.empty_like(problem.query)
        # [kWorkspaceBytes], zero: split-KV partial results, XQA's semaphores
        self._workspace = torch.zeros(kWorkspaceBytes, dtype=torch.uint8, device=problem.device)

    def output(self) -> torch.Tensor:
        return self._out

    def expected(self) -> torch.Tensor:
        return self._problem.reference()

    def kv_bytes(self) -> int:
        return self._problem.shape.kv_bytes(4 * self._problem.shape.head_dim)

    def release(self) -> None:
        self._problem = None
        self._kv = self._out = self._workspace = None


class Fa2Adapter(_FlashInferAdapter):
    """`BatchDecodeWithPagedKVCacheWrapper`, backend fa2, with or without tensor cores."""

    def __init__(self, name: str, layout: str, use_tensor_cores: bool) -> None:
        super().__init__(name, layout)
        self._use_tensor_cores = use_tensor_cores
        self.is_baseline = use_tensor_cores

    def supports(self, shape: DecodeShape) -> str:
        if shape.head_dim not in kFa2HeadDims:
            return f"head_dim = {shape.head_dim}, FA2 decode takes {kFa2HeadDims}"
        return ""

    def prepare(self, problem: DecodeProblem) -> None:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        self._allocate(problem)
        shape, table = problem.shape, problem.table
        self._wrapper = BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            self.layout,
            use_tensor_cores=self._use_tensor_cores,
            backend="fa2" if self._use_tensor_cores else "auto",
        )
        self._wrapper.plan(
            table.kv_indptr_host,
            table.kv_indices,
            table.kv_last_page_len_host,
            shape.num_qo_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.page_size,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
            o_data_type=torch.bfloat16,
            sm_scale=shape.sm_scale,
        )

    def run(self) -> None:
        self._wrapper.run(self._problem.query, self._kv, out=self._out, enable_pdl=True)

    def release(self) -> None:
        self._wrapper = None
        super().release()


class XqaAdapter(_FlashInferAdapter):
    """`xqa_batch_decode_with_kv_cache`, the path FlashInfer picks on Hopper for block tables."""

    bf16_roundings = 4  # probabilities, partial sums of warps and of splits, output

    def supports(self, shape: DecodeShape) -> str:
        if shape.page_size not in kXqaPageSizes:
            return f"page_size = {shape.page_size}, XQA takes {kXqaPageSizes}"
        if shape.head_dim % 16 != 0 or shape.head_dim > 256:
            return f"head_dim = {shape.head_dim}, XQA takes multiples of 16 up to 256"
        return ""

    def prepare(self, problem: DecodeProblem) -> None:
        from flashinfer.decode import xqa_batch_decode_with_kv_cache

        self._allocate(problem)
        self._decode = xqa_batch_decode_with_kv_cache

    def run(self) -> None:
        problem = self._problem
        self._decode(
            problem.query,
            self._kv,
            self._workspace,
            problem.table.block_table,
            problem.table.seq_lens,
            problem.shape.pages_per_request * problem.shape.page_size,
            bmm1_scale=problem.shape.sm_scale,
            bmm2_scale=1.0,
            out=self._out,
            kv_layout=self.layout,
            enable_pdl=True,
        )


def make(name: str) -> _FlashInferAdapter:
    if name.startswith("xqa_"):
        return XqaAdapter(name, name.removeprefix("xqa_").upper())
    layout = name.rsplit("_", 1)[1].upper()
    return Fa2Adapter(name, layout, use_tensor_cores=name.startswith("fa2_tc_"))
