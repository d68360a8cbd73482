"""Files that must be refused: one line naming file, tensor, found and expected; exit code 2."""

import json
import os
import struct

import numpy as np
import pytest
from conftest import file_bytes, header_and_data, make_tensors, write_file

BIG = 2**63 - 1


def refused(foscar, path, content, *expected, command="run"):
    path.write_bytes(content)
    line = foscar.refuses(command, "--input", path)
    assert path.name in line and "found" in line and "expected" in line, line
    for text in expected:
        assert text in line, line


@pytest.fixture
def path(tmp_path):
    return tmp_path / "broken.safetensors"


def test_not_a_file_at_all(foscar, tmp_path, path):
    for target in (tmp_path / "absent.safetensors", tmp_path, "/dev/zero"):
        line = foscar.refuses("run", "--input", target)
        assert str(target) in line and "expected" in line
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in foscar.refuses("run", "--input", tmp_path / "pipe")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\x08\0\0\0\0\0\0",
        b"\0" * 8,
        b"\0" * 64,
        b"\xff" * 64,
        b"GGUF" * 20,
        b"{}" * 100,
    ],
)
def test_no_header(foscar, path, content):
    refused(foscar, path, content)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1])
def test_header_length(foscar, path, length):
    content = bytearray(file_bytes(*header_and_data(make_tensors(kv_len=3))))
    content[:8] = struct.pack("<Q", length)
    refused(foscar, path, bytes(content), "header")


def test_every_truncation_of_the_header_and_some_of_the_data(foscar, path):
    content = file_bytes(
        *header_and_data(
            make_tensors(batch=1, kv_len=2, num_qo_heads=1, num_kv_heads=1, head_dim=64)
        )
    )
    data_start = 8 + struct.unpack("<Q", content[:8])[0]
    for size in [
        *range(0, data_start, 7),
        data_start,
        data_start + 1,
        len(content) - 2,
        len(content) - 1,
    ]:
        refused(foscar, path, content[:size])
    refused(foscar, path, content + b"\0", "bytes of data")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}x",
        "null",
        '{"q": 1}',
        '{"q": []}',
        '{"q": {}}',
        '{"q": {"dtype": "F32", "shape": [1]}}',
        '{"q": {"dtype": 4, "shape": [1], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": [1e300], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        '{"q": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}',
        '{"q": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}',
        '{"q": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}',
        '{"q": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        '{"q": {"dtype": "Q2", "shape": [1], "data_offsets": [0, 4]}}',
        '{"__metadata__": 1}',
        '{"__metadata__": {"a": 1}}',
        '{"__metadata__": {"a": "1", "a": "2"}}',
        '{"__metadata__": {}, "__metadata__": {}}',
        '{"a\\nb": 1}',
        '{"\\u0000\\u001b[31m": {"dtype": "?"}}',
        '{"q": ' + "[" * 100000,
        '{"a":' * 100000,
        '{"q": {"dtype": "F32", "shape": [' + "1," * 100000 + "1]}}",
        '{"' + "x" * 100000 + '": 1}',
        '{"\xff\xfe": 1}',
    ],
)
def test_header_json(foscar, path, text):
    refused(foscar, path, file_bytes(text, b"\0" * 4))


def tensors_with(**changes):
    return make_tensors(batch=2, kv_len=8, num_qo_heads=4, num_kv_heads=2, head_dim=64) | changes


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"q": zeros(2, 4, 64, dtype=np.float64)}, ["tensor 'q'", "F64"]),
        ({"q": zeros(2, 4, 64, dtype=np.int32)}, ["tensor 'q'", "I32"]),
        ({"q": zeros(2, 4, 1, 64)}, ["tensor 'q'", "[2, 4, 1, 64]"]),
        ({"q": zeros(3, 4, 64)}, ["tensor 'q'", "[3, 4, 64]"]),
        ({"q": zeros(2, 3, 64)}, ["tensor 'q'", "multiple of 2"]),
        ({"q": zeros(2, 4, 128)}, ["tensor 'q'", "[2, 4, 128]"]),
        ({"q": zeros(2, 0, 64)}, ["tensor 'q'", "[2, 0, 64]"]),
        ({"k": zeros(2, 8, 64)}, ["tensor 'k'", "[2, 8, 64]"]),
        ({"k": zeros(0, 8, 2, 64)}, ["tensor 'k'", "[0, 8, 2, 64]"]),
        ({"v": zeros(2, 9, 2, 64)}, ["tensor 'v'", "[2, 9, 2, 64]", "[2, 8, 2, 64]"]),
        ({"kv_len": zeros(2, dtype=np.float32)}, ["tensor 'kv_len'", "F32"]),
        ({"kv_len": zeros(3, dtype=np.int32)}, ["tensor 'kv_len'", "[3]", "[2]"]),
        ({"kv_len": np.array([8, 9], np.int32)}, ["tensor 'kv_len'", "9 at [1]"]),
        ({"kv_len": np.array([-1, 8], np.int32)}, ["tensor 'kv_len'", "-1 at [0]"]),
        ({"kv_len": np.array([-(2**31), 8], np.int32)}, ["tensor 'kv_len'"]),
        ({"kv_len": np.array([0, 0], np.int32)}, ["tensor 'kv_len'"]),
        ({"q": np.full((2, 4, 64), np.nan, np.float32)}, ["tensor 'q'", "NaN at [0, 0, 0]"]),
        ({"k": np.full((2, 8, 2, 64), np.inf, np.float32)}, ["tensor 'k'", "infinity"]),
        ({"v": np.full((2, 8, 2, 64), -np.inf, np.float16)}, ["tensor 'v'", "infinity"]),
    ],
)
def test_tensors_that_do_not_fit(foscar, path, changes, expected):
    write_file(path, tensors_with(**changes))
    refused(foscar, path, path.read_bytes(), *expected)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_missing_tensor(foscar, path, name):
    tensors = tensors_with()
    del tensors[name]
    refused(foscar, path, file_bytes(*header_and_data(tensors)), f"tensor '{name}'", "only ")


@pytest.mark.parametrize("head_dim", [1, 32, 100, 512])
def test_head_dim_that_is_not_supported(foscar, path, head_dim):
    tensors = make_tensors(batch=1, kv_len=4, num_qo_heads=2, num_kv_heads=1, head_dim=head_dim)
    refused(foscar, path, file_bytes(*header_and_data(tensors)), "head_dim", str(head_dim))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [BIG, BIG, BIG, BIG]),
        ("shape", [2**32, 2**32, 1, 1]),
        ("shape", [BIG, 1, 1, 0]),
        ("shape", [2**64, 1, 1, 1]),
        ("shape", [2**200]),
        ("data_offsets", [0, BIG]),
        ("data_offsets", [BIG, BIG]),
        ("data_offsets", [8, 0]),
        ("data_offsets", [2**64 - 4, 2**64 - 4]),
    ],
)
def test_numbers_that_overflow(foscar, path, field, value):
    header, data = header_and_data(tensors_with())
    header["k"][field] = value
    refused(foscar, path, file_bytes(header, data), "tensor 'k'")


def test_overlaps_and_holes(foscar, path):
    header, data = header_and_data(tensors_with())
    size = header["k"]["data_offsets"][1] - header["k"]["data_offsets"][0]
    begin = header["k"]["data_offsets"][0]
    header["v"]["data_offsets"] = [begin, begin + size]  # V shares K's bytes
    refused(foscar, path, file_bytes(header, data), "overlaps")
    header["v"]["data_offsets"] = [begin + size + 2, begin + 2 * size + 2]
    refused(foscar, path, file_bytes(header, data + b"\0\0"), "tensor 'v'", "holes")


def test_name_twice(foscar, path):
    header, data = header_and_data(tensors_with())
    text = json.dumps(header)
    again = json.dumps({"q": header["q"]})[1:-1]
    refused(foscar, path, file_bytes(text[:-1] + ", " + again + "}", data), "twice")


def test_sparse_file_larger_than_memory(foscar, path):
    tokens = 2**33
    q_bytes, kv_bytes = 2 * 64 * 2, tokens * 64 * 2
    header = {
        "q": {"dtype": "BF16", "shape": [1, 2, 64], "data_offsets": [0, q_bytes]},
        "k": {
            "dtype": "BF16",
            "shape": [2**10, 2**23, 1, 64],
            "data_offsets": [q_bytes, q_bytes + kv_bytes],
        },
        "v": {
            "dtype": "BF16",
            "shape": [2**10, 2**23, 1, 64],
            "data_offsets": [q_bytes + kv_bytes, q_bytes + 2 * kv_bytes],
        },
    }
    content = file_bytes(header, b"")
    with path.open("wb") as file:
        file.write(content)
        try:
            file.truncate(len(content) + q_bytes + 2 * kv_bytes)
        except OSError:
            pytest.skip("this file system has no sparse files of that size")
    foscar.refuses("quantize", "--input", path, "--output", path.with_suffix(".out"))


# Saved caches


@pytest.fixture
def cache(foscar, tmp_path):
    """Header and data of a good saved cache: 2 requests, 20 tokens, pages of 16."""
    source = write_file(tmp_path / "kv.safetensors", make_tensors(kv_len=20))
    saved = tmp_path / "cache.safetensors"
    assert (
        foscar("quantize", "--input", source, "--output", saved, "--page-size", 16).returncode == 0
    )
    content = saved.read_bytes()
    data_start = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:data_start]), content[data_start:]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("foscar_cache_version", "2"),
        ("foscar_cache_version", ""),
        ("foscar_cache_version", None),
        ("format", "k2v2-token-g128-f64"),
        ("format", "k2v2-channel-g128-f32"),
        ("format", "k4v4-token-g128-f32"),
        ("format", None),
        ("head_dim", "64"),
        ("head_dim", "127"),
        ("head_dim", "-128"),
        ("head_dim", "128 "),
        ("head_dim", "99999999999999999999"),
        ("page_size", "0"),
        ("page_size", "32"),
        ("page_size", "15"),
        ("num_kv_heads", "1"),
        ("num_kv_heads", "2147483647"),
        ("num_pages", "5"),
        ("num_pages", None),
        ("rotation", "hadamard"),
    ],
)
def test_cache_metadata(foscar, path, cache, key, value):
    header, data = cache
    if value is None:
        del header["__metadata__"][key]
    else:
        header["__metadata__"][key] = value
    refused(foscar, path, file_bytes(header, data), command="inspect")


def test_cache_page_ids_and_lengths(foscar, path, cache):
    header, data = cache

    def with_int32(name, index, value):
        at = header[name]["data_offsets"][0] + 4 * index
        return data[:at] + struct.pack("<i", value) + data[at + 4 :]

    for value in (-1, 4, 2**31 - 1, -(2**31)):
        content = file_bytes(header, with_int32("block_table", 1, value))
        refused(foscar, path, content, "block_table", "[0, 1]", command="inspect")
    for value in (-1, 33, 2**31 - 1):
        refused(
            foscar,
            path,
            file_bytes(header, with_int32("kv_len", 1, value)),
            "kv_len",
            "[1]",
            command="inspect",
        )


def test_cache_scales(foscar, path, cache):
    header, data = cache
    begin = header["pool"]["data_offsets"][0] + 16 * 64
    for value in (0.0, -1.0, float("nan"), float("inf")):
        damaged = data[:begin] + struct.pack("<f", value) + data[begin + 4 :]
        refused(
            foscar,
            path,
            file_bytes(header, damaged),
            "tensor 'pool'",
            "page 0, head 0, slot 0",
            command="inspect",
        )


def test_cache_with_another_tensor(foscar, path, cache):
    header, data = cache
    header["extra"] = {"dtype": "U8", "shape": [4], "data_offsets": [len(data), len(data) + 4]}
    refused(foscar, path, file_bytes(header, data + b"\0" * 4), "tensor 'extra'", command="inspect")


def test_inspect_of_a_file_that_is_no_cache(foscar, sample):
    assert "foscar_cache_version" in foscar.refuses("inspect", sample)
