"""Saved caches: what `foscar quantize` writes and `foscar inspect` reads, recomputed by numpy."""

import numpy as np
import pytest
from conftest import bf16_values, make_tensors, write_file
from safetensors import safe_open
from safetensors.numpy import load_file


def quantize(foscar, source, target, *args):
    result = foscar("quantize", "--input", source, "--output", target, *args)
    assert result.returncode == 0, result.stderr
    return target


def test_saved_cache_is_a_safetensors_file_with_metadata(foscar, sample, tmp_path):
    saved = quantize(
        foscar, sample, tmp_path / "cache.safetensors", "--format", "k2v2-token-g128-f32"
    )
    with safe_open(saved, "np") as file:
        assert file.metadata() == {
            "foscar_cache_version": "1",
            "format": "k2v2-token-g128-f32",
            "head_dim": "128",
            "page_size": "64",
            "num_kv_heads": "2",
            "num_pages": "4",
        }
    tensors = load_file(saved)
    assert sorted(tensors) == ["block_table", "kv_len", "pool"]
    assert tensors["pool"].shape == (
        4,
        2,
        64 * 80,
    )  # 80 bytes per token and KV head at 2.5 bits per element
    assert tensors["block_table"].tolist() == [[0, 1], [2, 3]]
    assert tensors["kv_len"].tolist() == [96, 96]


def test_statistics_equal_those_of_the_rows(foscar, tmp_path):
    tensors = make_tensors(batch=3, kv_len=40)
    kv_len = np.array([40, 0, 17], dtype=np.int32)
    source = write_file(tmp_path / "in.safetensors", tensors | {"kv_len": kv_len})
    saved = quantize(
        foscar, source, tmp_path / "c", "--format", "k4v2-token-g128-f32", "--page-size", "16"
    )
    report = foscar.json("inspect", saved)
    assert report["format"] == "k4v2-token-g128-f32" and report["bits_per_element"] == 3.5
    assert report["num_tokens"] == 57 and report["num_pages"] == 3 + 2
    assert report["pool_bytes"] == 5 * 2 * 16 * (64 + 32 + 16)
    for name, bits in (("k", 4), ("v", 2)):
        rows = bf16_values(tensors[name])
        rows = np.concatenate([rows[b, :n].reshape(-1, 128) for b, n in enumerate(kv_len)])
        scale = np.ptp(rows, axis=-1) / (2**bits - 1)
        side = report[name]
        assert side["groups"] == 57 * 2 and side["nan_groups"] == 0
        for key, values in (("scale", scale), ("offset", rows.min(-1))):
            assert side[key]["min"] == pytest.approx(values.min(), rel=1e-6)
            assert side[key]["median"] == pytest.approx(np.sort(values)[len(values) // 2], rel=1e-6)
            assert side[key]["max"] == pytest.approx(values.max(), rel=1e-6)


def test_inspect_prints_a_table(foscar, sample, tmp_path):
    saved = quantize(foscar, sample, tmp_path / "cache.safetensors")
    result = foscar("inspect", saved)
    assert result.returncode == 0
    for text in (
        "k2v2-token-g128-f32",
        "2.5 bits per element",
        "4 pages of 64 tokens",
        "K scale",
        "V offset",
    ):
        assert text in result.stdout


def test_quantize_needs_no_query_and_replaces_only_on_success(foscar, tmp_path):
    tensors = make_tensors()
    del tensors["q"]
    source = write_file(tmp_path / "kv.safetensors", tensors)
    target = quantize(foscar, source, tmp_path / "cache.safetensors")
    before = target.read_bytes()
    source.write_bytes(source.read_bytes()[:-1])
    foscar.refuses("quantize", "--input", source, "--output", target)
    assert target.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache.safetensors", "kv.safetensors"]


def test_output_that_cannot_be_written(foscar, sample, tmp_path):
    line = foscar.refuses(
        "quantize", "--input", sample, "--output", tmp_path / "no" / "such" / "place"
    )
    assert "place" in line
    assert "place" in foscar.refuses(
        "run", "--input", sample, "--output", tmp_path / "no" / "such" / "place"
    )
