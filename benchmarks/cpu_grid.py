"""The CPU decode grid: this library beside torch, llama.cpp and ONNX Runtime, one process.

    python -m benchmarks.cpu_grid --commit $(git rev-parse --short HEAD) --output FILE.json

A cell is (batch, kv_len, threads, caches hot or swept). All paths of a cell take turns, round after
round, so that a change of clock or a noisy neighbour meets all of them. "hot": right after 30 ms of
the same call; "swept": then 256 MB of other data are read. Every output is checked before anything
is timed: ours in double precision over the stored values, the others against the BF16 values within
what their cache type loses. The baseline of a record of ours is the BF16 decode of
the same instruction set; of another library's record, the BF16 decode of the best set.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import sys
import time

from benchmarks.cpu_peers.problem import Foscar, Problem, kHeadDim, kKvHeads, kQoHeads, shim

kFormats = ["k2v2-token-g128-f32", "k4v4-token-g128-f32"]
kBackends = ["cpu-amx", "cpu-avx512", "cpu-avx2"]
kMinRounds, kMaxRounds = 3, 15
kSlowUs = 5e4  # calls above this are timed in kMinRounds rounds
kWarmUpS = 0.03
# Above this many cached tokens of the batch (a BF16 cache of 2 GB), the others are left out: their
# copies together would not fit a machine of 24 GB.
kMaxPeerTokens = 8 * 65536


def peers(names: list[str]) -> list:
    """Adapters of the libraries asked for; a missing one is an error that names it."""
    out = []
    if "torch" in names:
        from benchmarks.cpu_peers.torch_sdpa import TorchSdpa

        out += [TorchSdpa(d, f) for d in ("bf16", "fp32") for f in ("heads as tokens", "gqa")]
    if "ggml" in names:
        from benchmarks.cpu_peers.ggml_flash import GgmlFlash

        out += [GgmlFlash(t) for t in ("f16", "q8_0", "q4_0")]
    if "ort" in names:
        from benchmarks.cpu_peers.ort_gqa import OrtGqa

        out += [OrtGqa(4), OrtGqa(8)]
    return out


def warm_up(adapter) -> None:
    """Calls for kWarmUpS: a thread pool that slept is slow at first, and threads of the library
    before may still spin for work on the processor that this one needs."""
    until = time.perf_counter() + kWarmUpS
    while True:
        adapter.run()
        if time.perf_counter() > until:
            return


def take_turns(adapters: list, hot: bool, budget_s: float) -> list[list[float]]:
    """Microseconds of each adapter's calls, one per round until the budget is spent."""
    times: list[list[float]] = [[] for _ in adapters]
    started = time.monotonic()
    for i in range(kMaxRounds):
        if i >= kMinRounds and time.monotonic() - started > budget_s:
            break
        for adapter, samples in zip(adapters, times, strict=True):
            if i >= kMinRounds and samples[0] > kSlowUs:
                continue
            warm_up(adapter)
            if not hot:
                shim.foscar_sweep_caches()
            begin = time.perf_counter_ns()
            adapter.run()
            samples.append((time.perf_counter_ns() - begin) * 1e-3)
    return times


def check(adapters: list, label: str) -> list[float]:
    errors = []
    for adapter in adapters:
        adapter.set_threads(1)
        adapter.run()
        error = adapter.error()
        if not error <= adapter.limit:
            raise RuntimeError(
                f"{label} {adapter.kernel} {adapter.format}: relative error {error:.2e},"
                f" allowed {adapter.limit:.0e}"
            )
        errors.append(error)
    return errors


def measure(batch: int, kv_len: int, args: argparse.Namespace, ceilings: dict) -> list[dict]:
    problem = Problem(batch, kv_len, kFormats)
    backends = [b for b in kBackends if shim.foscar_backend_available(b.encode())]
    adapters = [Foscar(b, f) for b in backends for f in ["bf16", *kFormats]]
    if batch * kv_len <= kMaxPeerTokens:
        adapters += peers(args.peers)
    for adapter in adapters:
        adapter.prepare(problem)
    label = f"{batch} x {kv_len}"
    errors = check(adapters, label)
    records = []
    for threads in args.threads:
        for adapter in adapters:
            adapter.set_threads(threads)
        for state in ("hot", "swept"):
            times = take_turns(adapters, state == "hot", args.budget_s)
            base = {
                a.kernel: statistics.median(t)
                for a, t in zip(adapters, times, strict=True)
                if isinstance(a, Foscar) and a.format == "bf16"
            }
            for adapter, samples, error in zip(adapters, times, errors, strict=True):
                samples.sort()
                us = statistics.median(samples)
                name = adapter.kernel if adapter.kernel in base else backends[0]
                gbps = adapter.kv_bytes / us * 1e-3
                records.append(
                    {
                        "kernel": adapter.kernel,
                        "format": adapter.format,
                        "batch_size": batch,
                        "kv_len": kv_len,
                        "num_qo_heads": kQoHeads,
                        "num_kv_heads": kKvHeads,
                        "head_dim": kHeadDim,
                        "page_size": 64,
                        "threads": threads,
                        "caches": state,
                        "us": round(us, 1),
                        "us_p10": round(samples[len(samples) // 10], 1),
                        "rounds": len(samples),
                        "gbps": round(gbps, 2),
                        "share_of_ceiling": round(gbps / ceilings[threads], 3),
                        "rel_error": float(f"{error:.2e}"),
                        "baseline": f"{name} bf16",
                        "baseline_us": round(base[name], 1),
                        "speedup": round(base[name] / us, 3),
                    }
                )
            print(f"{label}, {threads} threads, {state}: {len(times[0])} rounds", flush=True)
    for adapter in adapters:
        adapter.release()
    problem.release()
    return records


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> None:
    def ints(text: str) -> list[int]:
        return [int(x) for x in text.split(",")]

    def words(text: str) -> list[str]:
        return [x for x in text.split(",") if x]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=ints, default=[1, 8])
    parser.add_argument("--kv", type=ints, default=[4096, 32768, 131072])
    parser.add_argument("--threads", type=ints, default=[1, 2])
    parser.add_argument("--peers", type=words, default=["torch", "ggml", "ort"])
    parser.add_argument("--budget-s", type=float, default=15, help="of rounds per cell")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    ceilings = {t: shim.foscar_read_ceiling_gbps(t) for t in args.threads}
    given = sys.argv[1:]
    at = given.index("--output")
    report = {
        "device": processor(),
        "driver": f"{platform.system()} {platform.release()}",
        "commit": args.commit,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m benchmarks.cpu_grid " + " ".join(given[:at] + given[at + 2 :]),
        "huge_pages": True,
        "read_ceiling_gbps": round(max(ceilings.values()), 1),
        "read_ceilings_gbps": {str(t): round(g, 1) for t, g in ceilings.items()},
        "records": [],
    }
    for batch in args.batch:
        for kv_len in args.kv:
            report["records"] += measure(batch, kv_len, args, ceilings)
            args.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
