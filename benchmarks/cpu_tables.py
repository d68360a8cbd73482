"""The tables of docs/backends/cpu.md, from benchmarks/results/cpu/*.json; called by report.py."""

from __future__ import annotations

kNames = {"bf16": "BF16", "k4v4-token-g128-f32": "INT4", "k2v2-token-g128-f32": "INT2"}
kSets = {"cpu-amx": "AMX", "cpu-avx512": "AVX-512", "cpu-avx2": "AVX2"}
kLengths = (4096, 32768, 131072)
kGhz = 3.7  # of the processor of the results, for cycles


def _label(length: int) -> str:
    return f"{length // 1024}K"


class Cells:
    """Records by what they are; `get` is None where a cell was not measured."""

    def __init__(self, report: dict) -> None:
        self._cells = {
            (
                r["kernel"],
                r["format"],
                r["batch_size"],
                r["kv_len"],
                r["threads"],
                r["caches"],
            ): r
            for r in report["records"]
        }
        self.kernels = [k for k in kSets if any(key[0] == k for key in self._cells)]
        self.peers = list(
            dict.fromkeys((key[0], key[1]) for key in self._cells if key[0] not in kSets)
        )

    def get(self, kernel, fmt, batch, length, threads, caches="hot"):
        return self._cells.get((kernel, fmt, batch, length, threads, caches))


def _time(record: dict | None) -> str:
    return "-" if record is None else f"{record['us']:.0f}"


def _ratio(record: dict | None, other: dict | None) -> str:
    if record is None or other is None:
        return "-"
    return f"{record['us'] / other['us']:.2f}x"


def own(cells: Cells) -> list[str]:
    """One request, caches hot: microseconds, and the ratio to BF16 of the same set."""
    lines = [
        "| | 4K us | 32K us | 128K us | against BF16 at 4K | 32K | 128K |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for threads in (1, 2):
        for kernel in cells.kernels:
            for fmt, name in kNames.items():
                row = [cells.get(kernel, fmt, 1, n, threads) for n in kLengths]
                base = [cells.get(kernel, "bf16", 1, n, threads) for n in kLengths]
                ratios = [_ratio(b, r) for b, r in zip(base, row, strict=True)]
                plural = "s" if threads > 1 else ""
                fields = [*map(_time, row), *ratios]
                lines.append(
                    f"| {name}, {kSets[kernel]}, {threads} thread{plural} | "
                    + " | ".join(fields)
                    + " |"
                )
    return lines


def peers(cells: Cells) -> list[str]:
    """Other libraries, one request, caches hot; and how much faster ours is at 32K."""
    best = cells.kernels[0]
    lines = [
        "| | 4K us | 32K us | 128K us | 32K us, 2 threads | INT4 is faster at 32K, 1 / 2 threads"
        " | INT2 |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kernel, fmt in [(best, f) for f in kNames] + cells.peers:
        row = [cells.get(kernel, fmt, 1, n, 1) for n in kLengths]
        times = [*map(_time, row), _time(cells.get(kernel, fmt, 1, 32768, 2))]
        ratios = [
            " / ".join(
                _ratio(cells.get(kernel, fmt, 1, 32768, t), cells.get(best, low, 1, 32768, t))
                for t in (1, 2)
            )
            for low in ("k4v4-token-g128-f32", "k2v2-token-g128-f32")
        ]
        name = f"this library, {kNames[fmt]}" if kernel in kSets else f"{kernel}, {fmt}"
        lines.append(f"| {name} | " + " | ".join([*times, *ratios]) + " |")
    return lines


def batch(cells: Cells) -> list[str]:
    """Eight requests, and one with caches swept."""
    best = cells.kernels[0]
    columns = [(8, 4096, "hot"), (8, 32768, "hot"), (8, 131072, "hot"), (1, 4096, "swept"),
               (1, 32768, "swept")]  # fmt: skip
    titles = [f"{b} x {_label(n)}{', swept' if c == 'swept' else ''}" for b, n, c in columns]
    lines = [
        "| microseconds, 2 threads | " + " | ".join(titles) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for kernel, fmt in [(best, f) for f in kNames] + cells.peers:
        row = [_time(cells.get(kernel, fmt, b, n, 2, c)) for b, n, c in columns]
        name = f"this library, {kNames[fmt]}" if kernel in kSets else f"{kernel}, {fmt}"
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines


def roofline(report: dict, cells: Cells) -> list[str]:
    """Per token and KV head at 32K tokens: bytes, cycles, the share of the read bandwidth."""
    lines = [
        "| 32K tokens, one request | bytes per token and KV head | threads | caches | ns | cycles"
        " | cycles per byte | GB/s | of the read ceiling |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for kernel in cells.kernels:
        for fmt, name in kNames.items():
            for threads, caches in ((1, "hot"), (1, "swept"), (2, "hot")):
                r = cells.get(kernel, fmt, 1, 32768, threads, caches)
                if r is None:
                    continue
                tokens = r["kv_len"] * r["num_kv_heads"]
                size = r["gbps"] * r["us"] * 1e3 / tokens
                ns = r["us"] * 1e3 / tokens
                cycles = ns * kGhz * threads
                lines.append(
                    f"| {name}, {kSets[kernel]} | {size:.0f} | {threads} | {caches} | {ns:.1f}"
                    f" | {cycles:.0f} | {cycles / size:.2f} | {r['gbps']:.1f}"
                    f" | {100 * r['share_of_ceiling']:.0f} % |"
                )
    ceilings = " and ".join(
        f"{gbps:.0f} GB/s with {t} thread{'s' if t != '1' else ''}"
        for t, gbps in report["read_ceilings_gbps"].items()
    )
    lines += ["", f"Read ceiling, 512 MB on huge pages: {ceilings}; cycles of {kGhz} GHz, summed"
              " over the threads."]  # fmt: skip
    return lines


def lengths(report: dict) -> list[str]:
    """Nanoseconds per token and KV head by length, one request, caches hot."""
    cells = Cells(report)
    counts = sorted({r["kv_len"] for r in report["records"]})
    lines = [
        "| ns per token and KV head | "
        + " | ".join(map(_label, counts))
        + " | largest / smallest |",
        "|---|" + "--:|" * (len(counts) + 1),
    ]
    for threads in (1, 2):
        for kernel in cells.kernels:
            for fmt, name in kNames.items():
                row = [cells.get(kernel, fmt, 1, n, threads) for n in counts]
                ns = [r["us"] * 1e3 / (r["kv_len"] * r["num_kv_heads"]) for r in row]
                plural = "s" if threads > 1 else ""
                lines.append(
                    f"| {name}, {kSets[kernel]}, {threads} thread{plural} | "
                    + " | ".join(f"{x:.1f}" for x in ns)
                    + f" | {max(ns) / min(ns):.2f} |"
                )
    return lines


def provenance(report: dict) -> str:
    return (
        f"{report['device']}, {report['driver']}, commit {report['commit']}, {report['date']};"
        f" `{report['command']}`"
    )


def tables(grid: dict, by_length: dict) -> list[str]:
    """Everything between the markers of docs/backends/cpu.md."""
    cells = Cells(grid)
    return [
        *own(cells),
        "",
        "Other libraries, over the same values in the same process:",
        "",
        *peers(cells),
        "",
        *batch(cells),
        "",
        *roofline(grid, cells),
        "",
        provenance(grid),
        "",
        *lengths(by_length),
        "",
        provenance(by_length),
    ]
