"""Builds the training text of the example model from Debian packages.

    python corpus.py    # needs apt-get and dpkg; writes cache/train.jsonl, cache/heldout.jsonl

Steps: `apt-get download` each package of packages.tsv into cache/debs, `dpkg -x` into cache/x, read
the documents (extract.py), keep English prose paragraphs, drop every paragraph seen before, split
by document. A document (a file, a block of dictionary entries, a book of the Bible) is held out
when sha256(name) mod 50 == 0. Held-out documents are de-duplicated AFTER the training ones, so no
held-out paragraph occurs in the training text. Sorted names everywhere: the same package versions
give the same bytes. corpus.json records versions, checksums and bytes kept.
"""

import csv
import hashlib
import json
import re
import subprocess
from multiprocessing import Pool
from pathlib import Path

from extract import READERS, prose

HERE = Path(__file__).resolve().parent
CACHE = HERE / "cache"
HELDOUT_ONE_IN = 50
MIN_DOCUMENT_CHARS = 500
# Paths that are licences, changelogs, indexes, or in another language than English.
SKIP = re.compile(
    r"changelog|copyright|/NEWS|README|genindex|py-modindex|search\.html|_modules/|_sources/|"
    r"/(?!en[-_/])[a-z]{2}([-_][A-Za-z]{2,4})?/(?=.*\.(html|page|docbook))|"
    r"\.(?!en)[a-z]{2}([-_][a-z]{2})?\.(html|txt)$|/man/(?!man)|/locale/"
)


def packages() -> list[dict[str, str]]:
    """Rows of packages.tsv: package, licence, reader, under (a path fragment to keep, or empty)."""
    with open(HERE / "packages.tsv", newline="") as f:
        return list(csv.DictReader(f, delimiter="\t"))


def fetch(name: str) -> Path:
    """Downloads and unpacks one package once; returns the folder it was unpacked to."""
    debs, folder = CACHE / "debs", CACHE / "x" / name
    debs.mkdir(parents=True, exist_ok=True)
    if not list(debs.glob(f"{name}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", name], cwd=debs, check=True)
    if not folder.exists():
        subprocess.run(["dpkg", "-x", next(debs.glob(f"{name}_*.deb")), folder], check=True)
    return folder


def read_package(row: dict[str, str]) -> list[tuple[str, list[str]]]:
    """All documents of one package with their prose paragraphs, in order of file name."""
    root = CACHE / "x" / row["package"]
    reader, suffixes = READERS[row["reader"]]
    short = row["reader"] in ("dictionary", "sword")
    documents = []
    for path in sorted(p for p in root.rglob("*") if p.name.endswith(suffixes)):
        relative = "/" + str(path.relative_to(root))
        if path.is_symlink() or not path.is_file() or row["under"] not in relative:
            continue
        if SKIP.search(relative):
            continue
        for name, paragraphs in reader(path):
            kept = [p for p in map(lambda q: prose(q, 40 if short else 60), paragraphs) if p]
            if not name.startswith("bible/"):
                name = f"{row['package']}{relative}" + (f"#{name}" if short else "")
            if sum(map(len, kept)) >= MIN_DOCUMENT_CHARS:
                documents.append((name, kept))
    return documents


def is_heldout(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELDOUT_ONE_IN == 0


def paragraph_key(text: str) -> bytes:
    """Equal for paragraphs that differ only in case, spacing, digits or punctuation."""
    return hashlib.blake2b(re.sub(r"[^a-z]", "", text.lower()).encode(), digest_size=10).digest()


def main() -> None:
    rows = packages()
    for row in rows:
        fetch(row["package"])
    seen: set[bytes] = set()
    splits: dict[str, list[dict[str, str]]] = {"train": [], "heldout": []}
    kept = {row["package"]: {"train": 0, "heldout": 0} for row in rows}
    with Pool(2) as pool:
        read = pool.map(read_package, rows, chunksize=1)
    for split in ("train", "heldout"):
        for row, documents in zip(rows, read, strict=True):
            for name, paragraphs in documents:
                if is_heldout(name) != (split == "heldout"):
                    continue
                fresh = []
                for paragraph in paragraphs:
                    key = paragraph_key(paragraph)
                    if key not in seen:
                        seen.add(key)
                        fresh.append(paragraph)
                text = "\n".join(fresh)
                if len(text) >= MIN_DOCUMENT_CHARS:
                    splits[split].append(
                        {"package": row["package"], "document": name, "text": text})
                    kept[row["package"]][split] += len(text.encode())
    report = {"packages": {}, "documents": {s: len(d) for s, d in splits.items()}}
    for row in rows:
        deb = next((CACHE / "debs").glob(f"{row['package']}_*.deb"))
        report["packages"][row["package"]] = {
            "version": deb.name.split("_")[1].replace("%3a", ":"),
            "sha256": hashlib.sha256(deb.read_bytes()).hexdigest(),
            **kept[row["package"]]}
    for split, documents in splits.items():
        with open(CACHE / f"{split}.jsonl", "w") as f:
            f.writelines(json.dumps(d, ensure_ascii=False) + "\n" for d in documents)
        report[f"{split}_bytes"] = sum(len(d["text"].encode()) for d in documents)
    (HERE / "corpus.json").write_text(json.dumps(report, indent=1) + "\n")
    for name, entry in report["packages"].items():
        print(f"{name:32s} {entry['train']:>10d} {entry['heldout']:>9d}")
    print("total", report["train_bytes"], report["heldout_bytes"], report["documents"])


if __name__ == "__main__":
    main()
