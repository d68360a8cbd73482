"""The read ceiling of a device: the fastest rate at which a kernel that only reads can read.

    python3 -m benchmarks.read_ceiling

Every decode kernel is bounded by this rate, not by the data sheet's and not by a copy, which also
writes. The kernel sums what it loads, and stores the sum only if it equals a value that the buffer
(all ones) cannot produce, so the loads cannot be removed and nothing is written. Loads are 16 bytes
per thread; several launch shapes are tried and the best counts.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch
import triton
import triton.language as tl

from benchmarks.timing import time_launch

kReadBytes = 8 << 30
kImpossibleSum = -1


@triton.jit
def _read(
    source,  # int32 [num_blocks * BLOCK * UNROLL], all ones
    sink,  # int32 [1], never written
    num_blocks,  # blocks of BLOCK * UNROLL elements
    impossible,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        base = source + block.to(tl.int64) * (BLOCK * UNROLL)
        for step in tl.static_range(UNROLL):
            total += tl.load(base + step * BLOCK + lane, eviction_policy="evict_first")
    folded = tl.sum(total, axis=0)
    if folded == impossible:
        tl.store(sink, folded)


@dataclasses.dataclass(frozen=True)
class ReadShape:
    """BLOCK = 128 * num_warps elements: one 16-byte load per thread and step."""

    programs_per_sm: int
    num_warps: int
    unroll: int


def launch_shapes() -> list[ReadShape]:
    return [
        ReadShape(*shape)
        for shape in itertools.product((1, 2, 4, 8, 16, 32), (4, 8, 16), (4, 8, 16))
        if shape[0] * shape[1] <= 64
    ]


def read_ceiling_gbps(num_bytes: int = kReadBytes) -> tuple[float, ReadShape]:
    """10^9 bytes per second of the best launch shape, and the shape."""
    num_elements = num_bytes // 4
    source = torch.ones(num_elements, dtype=torch.int32, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    best = (0.0, ReadShape(0, 0, 0))
    for shape in launch_shapes():
        block = 128 * shape.num_warps
        num_blocks = num_elements // (block * shape.unroll)

        def run(shape: ReadShape = shape, block: int = block, num_blocks: int = num_blocks) -> None:
            _read[(num_sms * shape.programs_per_sm,)](
                source,
                sink,
                num_blocks,
                kImpossibleSum,
                BLOCK=block,
                UNROLL=shape.unroll,
                num_warps=shape.num_warps,
            )

        timing = time_launch(run, flush=None, runs=5, warmup=1)
        read = num_blocks * block * shape.unroll * 4
        best = max(best, (read / timing.min_us * 1e-3, shape), key=lambda entry: entry[0])
    return best


def main() -> None:
    gbps, shape = read_ceiling_gbps()
    print(f"{torch.cuda.get_device_name()}: {gbps:.0f} GB/s read only, {shape}")


if __name__ == "__main__":
    main()
