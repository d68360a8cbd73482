"""Trains the tokenizer, packs the corpus into one token file and computes the n-gram baselines.

    python pack_tokens.py           # after corpus.py; writes tokenizer.json, cache/tokens.npz.xz

The token file is an xz-compressed npz: `train` and `heldout` [n] uint16, both starting with
<|endoftext|> (id 0) and holding `document <|endoftext|>` for each document, and `meta`, UTF-8 JSON:
byte counts, the held-out documents in order, the baselines of ngram.py. train.py needs this file
and nothing else, so training can run on a machine without the packages.
"""

import io
import json
import lzma
import random
import time
from pathlib import Path

import ngram
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
CACHE = HERE / "cache"
END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
TOKEN_FILE = CACHE / "tokens.npz.xz"


def documents(split: str) -> list[dict[str, str]]:
    with open(CACHE / f"{split}.jsonl") as f:
        return [json.loads(line) for line in f]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every byte string has an encoding, so no held-out text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tokenizer.token_to_id(END_OF_TEXT) == 0 and tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """[n] uint16: END_OF_TEXT, then each text followed by END_OF_TEXT."""
    parts = [np.zeros(1, np.uint16)]
    for start in range(0, len(texts), 500):
        for encoding in tokenizer.encode_batch_fast(texts[start:start + 500]):
            parts += [np.array(encoding.ids, np.uint16), np.zeros(1, np.uint16)]
    return np.concatenate(parts)


def save(train: np.ndarray, heldout: np.ndarray, meta: dict) -> None:
    raw = io.BytesIO()
    np.savez(raw, train=train, heldout=heldout,
             meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))
    # Two-byte symbols: one position bit for both literals and matches (lp = pb = 1).
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1,
                "dict_size": 64 << 20}]
    TOKEN_FILE.write_bytes(lzma.compress(raw.getvalue(), filters=filters))


def load(path: Path = TOKEN_FILE) -> tuple[np.ndarray, np.ndarray, dict]:
    """Returns train [n] uint16, heldout [m] uint16, meta."""
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as data:
        return data["train"], data["heldout"], json.loads(data["meta"].tobytes())


def main() -> None:
    start = time.time()
    splits = {split: documents(split) for split in ("train", "heldout")}
    # Documents of one package lie together on disk; a fixed shuffle mixes them in the stream, and
    # with them what stands side by side in one training window.
    random.Random(0).shuffle(splits["train"])
    texts = {split: [d["text"] for d in docs] for split, docs in splits.items()}
    tokenizer = train_tokenizer(texts["train"])
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)
    print(f"tokenizer: {time.time() - start:.0f} s", flush=True)
    train, heldout = encode(tokenizer, texts["train"]), encode(tokenizer, texts["heldout"])
    print(f"train {len(train)} tokens, held-out {len(heldout)}: {time.time() - start:.0f} s",
          flush=True)
    meta = {
        "vocab_size": VOCAB_SIZE,
        "train_bytes": sum(len(t.encode()) for t in texts["train"]),
        "heldout_bytes": sum(len(t.encode()) for t in texts["heldout"]),
        "train_documents": len(texts["train"]),
        "heldout_documents": [[d["package"], d["document"]] for d in splits["heldout"]],
        "baselines": ngram.baselines(train, heldout, VOCAB_SIZE),
    }
    print(json.dumps(meta["baselines"]), f"{time.time() - start:.0f} s", flush=True)
    save(train, heldout, meta)
    print(f"{TOKEN_FILE.name}: {TOKEN_FILE.stat().st_size} bytes, {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
