"""GPU times of single launches: device events, a cold L2 cache, medians.

Called by the decode benchmark and by peers/smoke.py, for our kernel and every competitor alike.
One sample is, on one stream:

    read 256 MB (small cells only) | spin 200 us | event | run() | event

The read evicts the KV data of the sample before. It must be a read: a memset fills L2 with dirty
lines whose write-back is then charged to the kernel under test. The spin gives the host time to
enqueue what follows, so that Python's launch overhead is never measured.
Large cells evict themselves and skip the read.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

import torch

kFlushBytes = 256 << 20
# KV data below this many L2 sizes could partly survive from one sample to the next.
kFlushBelowL2Sizes = 4
kSpinCycles = 400_000  # about 200 us at 1.98 GHz
kRuns = 30
kRunsSlow = 10
kSlowMicroseconds = 2000.0


@dataclasses.dataclass(frozen=True)
class Timing:
    """Microseconds over the samples of one cell."""

    median_us: float
    min_us: float
    p10_us: float
    p90_us: float
    runs: int
    flushed: bool

    def gbps(self, num_bytes: int) -> float:
        """10^9 bytes per second at the median."""
        return num_bytes / self.median_us * 1e-3


class L2Flush:
    """Evicts the L2 cache by reading a buffer of 256 MB, leaving clean lines behind."""

    def __init__(self, device: str = "cuda") -> None:
        self._buffer = torch.ones(kFlushBytes // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        torch.sum(self._buffer, dim=0, out=self._sum)


def l2_bytes(device: int = 0) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size


def needs_flush(kv_bytes: int) -> bool:
    return kv_bytes < kFlushBelowL2Sizes * l2_bytes()


def time_launch(
    run: Callable[[], None], flush: L2Flush | None, runs: int | None = None, warmup: int = 3
) -> Timing:
    """Times `run`; `flush` is None for cells that evict themselves. Synchronizes the device.

    `runs` left out: 30 samples, 10 when one takes more than 2 ms.
    """
    for _ in range(warmup):
        run()
    if runs is None:
        pilot = statistics.median(_sample(run, flush, 3))
        runs = kRunsSlow if pilot > kSlowMicroseconds else kRuns
    samples = sorted(_sample(run, flush, runs))
    return Timing(
        median_us=statistics.median(samples),
        min_us=samples[0],
        p10_us=samples[len(samples) // 10],
        p90_us=samples[len(samples) - 1 - len(samples) // 10],
        runs=runs,
        flushed=flush is not None,
    )


def as_graph(run: Callable[[], None], warmup: int = 3) -> Callable[[], None]:
    """Captures `run` in a CUDA graph and returns its replay, for launchers slow on the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _sample(run: Callable[[], None], flush: L2Flush | None, runs: int) -> list[float]:
    """`runs` times in microseconds; all launches are enqueued before the one synchronization."""
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    torch.cuda.synchronize()
    for begin, end in pairs:
        if flush is not None:
            flush()
        torch.cuda._sleep(kSpinCycles)
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in pairs]
