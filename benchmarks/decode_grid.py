"""The decode grid: this library beside FlashInfer BF16, one process, same pages, same flush.

    python -m benchmarks.decode_grid --commit $(git rev-parse --short HEAD) --output FILE.json

A cell is a (batch, kv_len, heads) on pages of 64 in random order. The baseline of a cell is the
fastest FlashInfer BF16 path of that cell. Every path's output is checked before it is timed: ours
against double precision over the stored values, the others at small shapes by peers/smoke.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import sys
import time

import torch

from benchmarks.peers.adapter import make_adapter
from benchmarks.peers.foscar_low_bit import FoscarAdapter, kFormats
from benchmarks.peers.problem import DecodeProblem, DecodeShape
from benchmarks.read_ceiling import read_ceiling_gbps
from benchmarks.timing import L2Flush, needs_flush, time_launch

kMaxRelError = 3e-3  # BF16 output
kHeads = [(32, 8), (64, 8), (32, 4)]
kBatches = [1, 4, 16, 64]
kLengths = [4096, 16384, 32768, 131072]
kBaselines = ["fa2_tc_hnd", "fa2_tc_nhd", "xqa_hnd", "xqa_nhd"]


def shapes(names: list[str]) -> list[DecodeShape]:
    """`grid`, `pages` (page sizes at 16 x 128K) or single shapes BATCHxLENxHQ/HKVxPAGE."""
    out = []
    for name in names:
        if name == "grid":
            out += [
                DecodeShape(b, length, hq, hkv)
                for hq, hkv in kHeads
                for b in kBatches
                for length in kLengths
            ]
        elif name == "pages":
            out += [DecodeShape(16, 131072, 32, 8, page_size=p) for p in (1, 16)]
        else:
            batch, length, heads, page = name.split("x")
            hq, hkv = (int(x) for x in heads.split("/"))
            out.append(DecodeShape(int(batch), int(length), hq, hkv, page_size=int(page)))
    return out


def time_adapter(adapter, problem: DecodeProblem, flush: L2Flush, runs: int) -> float:
    return time_launch(
        adapter.run, flush if needs_flush(adapter.kv_bytes()) else None, runs=runs
    ).median_us


def rel_error(adapter: FoscarAdapter, problem: DecodeProblem) -> float:
    """Norm-wise error of the last request, against double precision."""
    adapter.output().fill_(float("nan"))
    adapter.run()
    torch.cuda.synchronize()
    request = problem.shape.batch_size - 1
    want = adapter.expected_row(request)
    got = adapter.output()[request].double()
    return ((got - want).norm() / want.norm()).item()


def measure(
    shape: DecodeShape, kernels: list[str], flush: L2Flush, ceiling: float, runs: int
) -> list[dict]:
    problem = DecodeProblem(shape)
    records = []
    for name in kernels:  # ours first: they need the pool as HND, as does the first baseline
        adapter = make_adapter(name)
        adapter.prepare(problem)
        error = rel_error(adapter, problem)
        if not error <= kMaxRelError:
            raise RuntimeError(f"{shape.label()} {name}: relative error {error:.2e}")
        us = time_adapter(adapter, problem, flush, runs)
        gbps = adapter.kv_bytes() / us * 1e-3
        records.append(
            {
                "kernel": "foscar",
                "format": adapter.format,
                "batch_size": shape.batch_size,
                "kv_len": shape.kv_len,
                "num_qo_heads": shape.num_qo_heads,
                "num_kv_heads": shape.num_kv_heads,
                "head_dim": shape.head_dim,
                "page_size": shape.page_size,
                "us": round(us, 2),
                "gbps": round(gbps, 1),
                "share_of_ceiling": round(gbps / ceiling, 4),
                "rel_error": error,
            }
        )
        adapter.release()
    times = {}
    for name in kBaselines:
        adapter = make_adapter(name)
        if adapter.supports(shape):
            continue
        adapter.prepare(problem)
        times[name] = time_adapter(adapter, problem, flush, runs)
        adapter.release()
    best = min(times, key=times.get)
    for record in records:
        record["baseline"] = f"flashinfer {best}"
        record["baseline_us"] = round(times[best], 2)
        record["speedup"] = round(times[best] / record["us"], 3)
    problem.release()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="*", default=["grid", "pages"])
    parser.add_argument("--kernels", default="foscar_int2_f32,foscar_int2_f16,foscar_int4_f32")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--budget-s", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    started = time.monotonic()
    kernels = args.kernels.split(",")
    for name in kernels:
        if name not in kFormats:
            parser.error(f"--kernels: {name} is unknown, known are {', '.join(kFormats)}")
    ceiling, how = read_ceiling_gbps()
    print(f"read ceiling {ceiling:.0f} GB/s ({dataclasses.asdict(how)})", flush=True)
    flush = L2Flush()
    records: list[dict] = []
    for shape in shapes(args.shapes):
        if time.monotonic() - started > args.budget_s:
            print(f"time is up before {shape.label()}", flush=True)
            break
        for record in measure(shape, kernels, flush, ceiling, args.runs):
            records.append(record)
            print(
                f"{shape.label():28} {record['format']:20} {record['us']:8.1f} us"
                f" {record['gbps']:6.0f} GB/s {100 * record['share_of_ceiling']:5.1f} %"
                f"  {record['baseline']} {record['baseline_us']:8.1f} us"
                f"  {record['speedup']:.2f}x  error {record['rel_error']:.1e}",
                flush=True,
            )
        torch.cuda.empty_cache()
    report = {
        "device": torch.cuda.get_device_name(),
        "driver": _driver(),
        "commit": args.commit,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m benchmarks.decode_grid " + " ".join(_arguments(sys.argv[1:])),
        "read_ceiling_gbps": round(ceiling, 1),
        "records": records,
    }
    if args.output:
        args.output.write_text(json.dumps(report, indent=1) + "\n")


def _arguments(given: list[str]) -> list[str]:
    """The arguments that decide what is measured: all but where the report goes."""
    if "--output" not in given:
        return given
    at = given.index("--output")
    return given[:at] + given[at + 2 :]


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


if __name__ == "__main__":
    main()
