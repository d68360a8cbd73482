"""Runs the built tool (FOSCAR_BIN) on files written byte by byte, broken ones included."""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

DTYPE_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.int32): "I32",
    np.dtype(np.uint8): "U8",
    np.dtype(np.float64): "F64",
    np.dtype(np.uint16): "BF16",  # numpy has no BF16: its bits travel as uint16
}


def bf16_bits(values):
    """float32 -> the upper halves, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def header_and_data(tensors, metadata=None):
    """The header as a dict and the data as bytes, for tests that then damage one of them."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = dict(metadata)
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return header, data


def file_bytes(header, data):
    """`header` is a dict, or JSON text where a dict cannot say it (duplicate keys)."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_file(path, tensors, metadata=None):
    path.write_bytes(file_bytes(*header_and_data(tensors, metadata)))
    return path


def make_tensors(
    batch=2, kv_len=96, num_qo_heads=8, num_kv_heads=2, head_dim=128, dtype="bf16", seed=0
):
    rng = np.random.default_rng(seed)
    convert = {"bf16": bf16_bits, "f16": np.float16, "f32": np.float32}[dtype]
    rows = (batch, kv_len, num_kv_heads, head_dim)
    return {
        "q": convert(rng.normal(size=(batch, num_qo_heads, head_dim))),
        "k": convert(rng.normal(size=rows) + rng.normal(size=rows[2:])),
        "v": convert(rng.normal(size=rows) + 0.5 * rng.normal(size=rows[2:])),
    }


class Tool:
    def __init__(self, path):
        self.path = path

    def __call__(self, *args, env=None, timeout=60):
        environment = {k: v for k, v in os.environ.items() if k != "FOSCAR_FORCE_BACKEND"}
        return subprocess.run(
            [self.path, *map(str, args)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment | (env or {}),
        )

    def json(self, *args, **kwargs):
        result = self(*args, "--json", **kwargs)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def refuses(self, *args, **kwargs):
        """The error line of a call that must end with exit code 2."""
        result = self(*args, **kwargs)
        assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
        assert result.stdout == ""
        assert result.stderr.startswith("foscar: ") and result.stderr.count("\n") == 1, (
            result.stderr
        )
        return result.stderr


@pytest.fixture(scope="session")
def foscar():
    path = os.environ.get("FOSCAR_BIN")
    if not path:
        pytest.fail("set FOSCAR_BIN to the built tool, e.g. FOSCAR_BIN=build/release/bin/foscar")
    return Tool(str(Path(path).resolve()))


@pytest.fixture
def sample(tmp_path):
    return write_file(tmp_path / "sample.safetensors", make_tensors())
