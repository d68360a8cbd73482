"""Rewrites the tables of README.md between its markers from packages.tsv, corpus.json and
training_log.json, so that every figure there is the recorded one.

    python readme_tables.py
"""

import json
import re
from pathlib import Path

import corpus

HERE = Path(__file__).resolve().parent


def corpus_table() -> str:
    report = json.loads((HERE / "corpus.json").read_text())
    lines = [
        "| package | version | licence | train bytes | held-out bytes |",
        "|---|---|---|--:|--:|",
    ]
    for row in corpus.packages():
        entry = report["packages"][row["package"]]
        lines.append(
            f"| {row['package']} | {entry['version']} | {row['licence']} | "
            f"{entry['train']:,} | {entry['heldout']:,} |"
        )
    counts = report["documents"]
    lines.append(
        f"| **all**: {counts['train']:,} and {counts['heldout']:,} documents | | | "
        f"{report['train_bytes']:,} | {report['heldout_bytes']:,} |"
    )
    return "\n".join(lines)


def results_table() -> str:
    path = HERE / "training_log.json"
    if not path.exists():
        return "Not trained yet: no training_log.json."
    log = json.loads(path.read_text())
    names = {
        "bf16_weights": "this model, committed BF16 weights",
        "fp32_weights": "this model, FP32 weights before rounding",
        "trigram_kneser_ney": "trigram, interpolated Kneser-Ney",
        "unigram": "unigram",
    }
    lines = [
        f"| held-out text, {log['heldout_tokens'] - 1:,} predicted tokens | nats a token | "
        "perplexity | bits a byte |",
        "|---|--:|--:|--:|",
    ]
    for key, name in names.items():
        row = log["heldout"][key]
        lines.append(
            f"| {name} | {row['nats_per_token']:.4f} | {row['perplexity']:.2f} | "
            f"{row['bits_per_byte']:.4f} |"
        )
    epochs = log["tokens_seen"] / log["train_tokens"]
    last_step, last_loss, _ = log["curve_step_loss_lr"][-1]
    rate = log["tokens_seen"] / log["train_seconds"] / 1e6
    lines += [
        "",
        f"{log['parameters']:,} parameters; {log['steps']:,} steps of {log['batch']} x "
        f"{log['context']} tokens = {log['tokens_seen'] / 1e6:.1f} M tokens ({epochs:.1f} "
        f"epochs) in {log['train_seconds']:.0f} s ({rate:.2f} M tokens/s, evaluations "
        f"included); training loss at step {last_step}: {last_loss:.4f}; skipped steps: "
        f"{log['skipped_steps']}.",
        f"Device {log['device']}, torch {log['torch']}, {log['date']}, seed {log['seed']}: "
        f"`{log['command']}`.",
    ]
    return "\n".join(lines)


def main() -> None:
    path = HERE / "README.md"
    text = path.read_text()
    for name, table in (("results", results_table()), ("corpus", corpus_table())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda m, table=table: m[1] + table + "\n" + m[2], text, flags=re.S)
    path.write_text(text)


if __name__ == "__main__":
    main()
