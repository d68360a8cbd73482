"""The adapter protocol of the benchmark, and the list of the competitors.

A benchmark cell does, for every adapter: `supports` -> `prepare` -> `run` and check `output` ->
time `run` -> `release`. `run` launches work on the current stream and nothing else: plans, casts,
copies and allocations belong to `prepare`, so that a timing holds kernels only.
"""

from __future__ import annotations

import importlib
from typing import Protocol, runtime_checkable

import torch

from benchmarks.peers.problem import DecodeProblem, DecodeShape


@runtime_checkable
class Adapter(Protocol):
    """One way to do the decode step of a `DecodeProblem`."""

    name: str
    # True: a BF16 path that may be quoted as the baseline. False: shown, never the baseline.
    is_baseline: bool
    # BF16 roundings of a value on its way to the output, see `rms_limit`.
    bf16_roundings: int

    def supports(self, shape: DecodeShape) -> str:
        """An empty string when the shape can be run, else the reason why it cannot."""

    def prepare(self, problem: DecodeProblem) -> None:
        """Allocates, plans, converts; afterwards `run` may be called any number of times."""

    def run(self) -> None:
        """Launches one decode step on the current stream."""

    def output(self) -> torch.Tensor:
        """The result of the last `run`, [batch, num_qo_heads, head_dim], BF16."""

    def expected(self) -> torch.Tensor:
        """What `output` should be, in FP32: attention over the values this adapter reads."""

    def kv_bytes(self) -> int:
        """Bytes of K, V and their parameters that one `run` must read."""

    def release(self) -> None:
        """Frees what `prepare` allocated."""


# module -> adapters; a module is imported only when asked for, so that a missing package of one
# competitor does not hide the others.
kRegistry: dict[str, tuple[str, ...]] = {
    "benchmarks.peers.flashinfer_bf16": (
        "fa2_tc_hnd",
        "fa2_tc_nhd",
        "xqa_hnd",
        "xqa_nhd",
        "fa2_cuda_cores_hnd",
    ),
    "benchmarks.peers.torch_sdpa_bf16": ("sdpa",),
    "benchmarks.peers.triton_per_value": ("triton_int2", "triton_int4"),
    "benchmarks.peers.foscar_low_bit": (
        "foscar_int2_f32",
        "foscar_int2_f16",
        "foscar_int4_f32",
        "foscar_int4_f16",
    ),
}


def rms_limit(adapter: Adapter) -> float:
    """Largest RMS error of `output`, relative to the RMS of `expected`, that passes a check.

    A rounding to BF16 is off by at most 2^-9 of the value. If all roundings of a value fell the
    same way the error would be bf16_roundings * 2^-9; independent ones stay well below it.
    """
    return adapter.bf16_roundings * 2.0**-9


def make_adapter(name: str) -> Adapter:
    """The adapter registered under `name`; an unknown name is a ValueError that lists the names."""
    for module, names in kRegistry.items():
        if name in names:
            return importlib.import_module(module).make(name)
    known = ", ".join(all_names())
    raise ValueError(f'adapter name "{name}" is unknown; registered: {known}')


def all_names() -> list[str]:
    return [name for names in kRegistry.values() for name in names]


def baseline_names() -> list[str]:
    """The BF16 paths of which a cell's fastest is the baseline."""
    return ["fa2_tc_hnd", "fa2_tc_nhd", "xqa_hnd", "xqa_nhd"]
