"""Checks every registered adapter against torch in FP32, then times it once.

    python3 -m benchmarks.peers.smoke [--names NAME ...] [--no-timing]

Prints one line per adapter; the exit code is 1 when a check failed or an adapter could not run.
The check cell is small and ragged at the end of its last page (4 requests of 1000 tokens, pages in
random order); the timed cells are one that fits in L2 and one that does not.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import torch

from benchmarks.peers.adapter import Adapter, all_names, make_adapter, rms_limit
from benchmarks.peers.problem import DecodeProblem, DecodeShape

kCheckShapes = (
    DecodeShape(batch_size=4, kv_len=1000),
    DecodeShape(batch_size=4, kv_len=1000, num_qo_heads=64, page_size=16),
)
kTimedShapes = (DecodeShape(batch_size=1, kv_len=4096), DecodeShape(batch_size=16, kv_len=32768))


def check(adapter: Adapter, problem: DecodeProblem) -> tuple[bool, str]:
    """Runs once and compares; a prepared adapter is left behind."""
    adapter.prepare(problem)
    # Two runs: a path that leaves its workspace dirty is right only the first time.
    for _ in range(2):
        adapter.run()
    expected = adapter.expected().float()
    error = adapter.output().float() - expected
    relative = (error.square().mean().sqrt() / expected.square().mean().sqrt()).item()
    limit = rms_limit(adapter)
    passed = relative <= limit  # false for NaN
    return passed, f"rms {relative:.2e} (limit {limit:.2e}), max {error.abs().max().item():.2e}"


def timed(adapter: Adapter, problem: DecodeProblem) -> str:
    from benchmarks.timing import L2Flush, needs_flush, time_launch

    adapter.prepare(problem)
    flush = L2Flush() if needs_flush(adapter.kv_bytes()) else None
    timing = time_launch(adapter.run, flush)
    return (
        f"{timing.median_us:.1f} us [{timing.p10_us:.1f}, {timing.p90_us:.1f}],"
        f" {timing.gbps(adapter.kv_bytes()):.0f} GB/s"
    )


def visit(adapter: Adapter, problem: DecodeProblem, action: str) -> bool:
    """One line: cell, adapter, result. False when the check failed or an exception came."""
    begin = time.monotonic()
    reason = adapter.supports(problem.shape)
    passed, text = True, f"not supported: {reason}"
    if not reason:
        try:
            if action == "check":
                passed, text = check(adapter, problem)
                text = ("ok  " if passed else "FAILED  ") + text
            else:
                text = timed(adapter, problem)
        except Exception:  # the remaining adapters still have to be visited
            passed, text = False, f"FAILED\n{traceback.format_exc()}"
    adapter.release()
    seconds = time.monotonic() - begin
    cell = f"{action:5} {problem.shape.label():28} {adapter.name:20}"
    print(f"{cell} {text}  ({seconds:.1f} s)", flush=True)
    return passed


def describe_machine(device: str) -> None:
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        l2_mb = properties.L2_cache_size / 2**20
        print(f"{properties.name}, {properties.multi_processor_count} SMs, L2 {l2_mb:.0f} MB")
    try:
        import flashinfer
        from flashinfer.jit import env

        modules = sorted(env.FLASHINFER_AOT_DIR.glob("*/*.so"))
        print(f"flashinfer {flashinfer.__version__}, {len(modules)} modules compiled ahead of time")
    except ImportError as error:
        print(f"flashinfer cannot be imported: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="*", default=all_names())
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    describe_machine(arguments.device)
    actions = [("check", shape) for shape in kCheckShapes]
    if not arguments.no_timing and arguments.device == "cuda":
        actions += [("time", shape) for shape in kTimedShapes]
    passed = True
    for action, shape in actions:
        problem = DecodeProblem(shape, arguments.device)
        for name in arguments.names:
            passed &= visit(make_adapter(name), problem, action)
        problem.release()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
