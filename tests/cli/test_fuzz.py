"""Random damage to good files, the same on every run: the outcome is a result or one error line."""

import random
import struct
from concurrent.futures import ThreadPoolExecutor

from conftest import file_bytes, header_and_data, make_tensors, write_file

NUM_MUTATIONS = 1000  # per kind of file
INTERESTING = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    ord("{"),
    ord("}"),
    ord("["),
    ord('"'),
    ord("\\"),
    ord("9"),
    ord("-"),
]


def mutate(content, rng):
    """One to four edits, three of four of them in the header, where the decisions are."""
    data = bytearray(content)
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(rng.randint(1, 4)):
        limit = len(data) if rng.random() < 0.25 else min(header_end, len(data))
        if limit == 0:
            break
        at = rng.randrange(limit)
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice(INTERESTING)
        elif kind == 2:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 16)))
        elif kind == 4:
            other = rng.randrange(limit)
            data[at:at] = data[other : other + rng.randint(1, 64)]
        elif kind == 5:  # a number becomes another one
            digits = [i for i in range(8, min(header_end, len(data))) if chr(data[i]).isdigit()]
            if digits:
                data[rng.choice(digits)] = ord(rng.choice("0123456789"))
        else:
            del data[at:]
    return bytes(data)


def fuzz(foscar, tmp_path, content, seed, command):
    rng = random.Random(seed)
    cases = [mutate(content, rng) for _ in range(NUM_MUTATIONS)]

    def one(index):
        path = tmp_path / f"{index}.safetensors"
        path.write_bytes(cases[index])
        result = foscar(*command(path))
        path.unlink()
        if result.returncode == 0:
            return None
        one_line = result.stderr.startswith("foscar: ") and result.stderr.count("\n") == 1
        return (
            None
            if result.returncode == 2 and one_line
            else (index, result.returncode, result.stderr[-500:])
        )

    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(one, range(NUM_MUTATIONS)) if failure]
    assert not failures, failures[:5]


def small_tensors():
    return make_tensors(batch=2, kv_len=5, num_qo_heads=2, num_kv_heads=1, head_dim=64)


def test_mutated_inputs(foscar, tmp_path):
    content = file_bytes(*header_and_data(small_tensors()))

    def command(path):
        if int(path.stem) % 2:
            saved = tmp_path / f"{path.stem}.out"
            return "quantize", "--input", path, "--output", saved, "--format", "k2v4-token-g64-f16"
        return "run", "--input", path, "--format", "k2v2-token-g64-f32", "--page-size", "4"

    fuzz(foscar, tmp_path, content, 1, command)


def test_mutated_caches(foscar, tmp_path):
    source = write_file(tmp_path / "kv.safetensors", small_tensors())
    saved = tmp_path / "saved.safetensors"
    options = ["--output", saved, "--format", "k4v2-token-g32-bf16", "--page-size", "4"]
    assert foscar("quantize", "--input", source, *options).returncode == 0
    fuzz(foscar, tmp_path, saved.read_bytes(), 2, lambda path: ("inspect", path))
