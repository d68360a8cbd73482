"""`foscar run` on good files, against numpy's own attention and the formulas of the formats."""

import numpy as np
import pytest
from conftest import bf16_bits, bf16_values, make_tensors, write_file
from safetensors.numpy import load_file

KEYS = [
    "backend",
    "format",
    "batch_size",
    "kv_len",
    "num_qo_heads",
    "num_kv_heads",
    "head_dim",
    "page_size",
    "kv_bytes_bf16",
    "kv_bytes",
    "compression",
    "rel_error_vs_dequantized",
    "rel_error_vs_unquantized",
    "decode_us",
    "bf16_us",
    "speedup",
]

KERNEL_TOLERANCE = 3e-3  # relative error against attention over the dequantized cache


def as_float(array):
    return bf16_values(array) if array.dtype == np.uint16 else array.astype(np.float32)


def attention(q, k, v):
    """Double-precision o and lse, one request and head at a time."""
    q = as_float(q).astype(np.float64)
    batch, num_qo_heads, head_dim = q.shape
    ratio = num_qo_heads // k.shape[2]
    o = np.zeros(q.shape)
    lse = np.zeros(q.shape[:2])
    for b in range(batch):
        for h in range(num_qo_heads):
            logits = k[b, :, h // ratio] @ q[b, h] / np.sqrt(head_dim)
            weights = np.exp(logits - logits.max())
            o[b, h] = weights @ v[b, :, h // ratio] / weights.sum()
            lse[b, h] = logits.max() + np.log(weights.sum())
    return o, lse


def through_the_format(values, bits, group_size):
    """Quantized and read back in the format's FP32 arithmetic: token-wise, FP32 parameters."""
    groups = as_float(values).reshape(-1, group_size)
    offset = groups.min(-1, keepdims=True)
    scale = np.ptp(groups, axis=-1, keepdims=True) / np.float32(2**bits - 1)
    code = np.clip(np.floor((groups - offset) / scale + np.float32(0.5)), 0, 2**bits - 1)
    return (scale.astype(np.float64) * code + offset).reshape(values.shape)


def relative_error(measured, expected):
    return np.linalg.norm(measured - expected) / np.linalg.norm(expected)


def test_json_has_exactly_the_documented_keys(foscar, sample):
    report = foscar.json("run", "--input", sample, "--format", "k2v2-token-g128-f32")
    assert list(report) == KEYS
    assert report["format"] == "k2v2-token-g128-f32"
    shape = [
        report[key]
        for key in ("batch_size", "kv_len", "num_qo_heads", "num_kv_heads", "head_dim", "page_size")
    ]
    assert shape == [2, 96, 8, 2, 128, 64]
    assert report["speedup"] == pytest.approx(report["bf16_us"] / report["decode_us"])


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("k2v2-token-g128-f32", 2.5),
        ("k4v4-token-g128-f32", 4.5),
        ("k4v2-token-g128-f32", 3.5),
        ("k2v2-token-g128-f16", 2.25),
        ("k4v4-token-g64-bf16", 4.5),
        ("k2v2-token-g32-f32", 4.0),
    ],
)
@pytest.mark.parametrize("page_size", [16, 64])
def test_bytes_equal_the_formula(foscar, sample, name, bits, page_size):
    report = foscar.json("run", "--input", sample, "--format", name, "--page-size", page_size)
    elements = 2 * 2 * 96 * 2 * 128  # K and V, batch, tokens, KV heads, head_dim
    assert report["kv_bytes"] == elements * bits / 8
    assert report["kv_bytes_bf16"] == elements * 2
    assert report["compression"] == pytest.approx(16 / bits)
    assert (
        report["rel_error_vs_dequantized"]
        <= KERNEL_TOLERANCE
        < report["rel_error_vs_unquantized"]
        < 1
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(
    ("k_bits", "v_bits", "group_size"), [(2, 2, 128), (4, 4, 128), (4, 2, 64), (2, 4, 32)]
)
def test_output_agrees_with_numpy(foscar, tmp_path, dtype, k_bits, v_bits, group_size):
    tensors = make_tensors(dtype=dtype)
    path = write_file(tmp_path / "in.safetensors", tensors)
    out = tmp_path / "out.safetensors"
    name = f"k{k_bits}v{v_bits}-token-g{group_size}-f32"
    report = foscar.json("run", "--input", path, "--format", name, "--output", out)
    written = load_file(out)

    o, lse = attention(
        tensors["q"],
        through_the_format(tensors["k"], k_bits, group_size),
        through_the_format(tensors["v"], v_bits, group_size),
    )
    assert written["o"].shape == o.shape and written["lse"].shape == lse.shape
    assert relative_error(written["o"], o) <= KERNEL_TOLERANCE
    assert np.abs(written["lse"] - lse).max() <= 1e-3 + 1e-4 * np.abs(lse).max()
    assert relative_error(written["o"], o) == pytest.approx(
        report["rel_error_vs_dequantized"], rel=0.01, abs=1e-6
    )

    exact, _ = attention(tensors["q"], as_float(tensors["k"]), as_float(tensors["v"]))
    assert relative_error(written["o"], exact) == pytest.approx(
        report["rel_error_vs_unquantized"], rel=1e-4
    )


def test_ragged_and_empty_requests(foscar, tmp_path):
    kv_len = np.array([96, 0, 1, 65], dtype=np.int32)
    tensors = make_tensors(batch=4, dtype="f32")
    good = write_file(tmp_path / "good.safetensors", tensors | {"kv_len": kv_len})
    for name in "kv":  # rows beyond a request's length may hold anything
        for b, length in enumerate(kv_len):
            tensors[name][b, length:] = np.nan
    poisoned = write_file(tmp_path / "poisoned.safetensors", tensors | {"kv_len": kv_len})
    outputs = []
    for path in (good, poisoned):
        out = tmp_path / (path.stem + ".out")
        report = foscar.json(
            "run", "--input", path, "--format", "k4v4-token-g128-f32", "--output", out
        )
        assert report["kv_bytes_bf16"] == int(kv_len.sum()) * 2 * 128 * 2 * 2
        assert report["kv_bytes"] == report["kv_bytes_bf16"] * 4.5 / 16
        assert report["rel_error_vs_dequantized"] <= KERNEL_TOLERANCE
        outputs.append(load_file(out))
    assert (outputs[0]["o"][1] == 0).all() and (outputs[0]["lse"][1] == -np.inf).all()
    np.testing.assert_array_equal(outputs[0]["o"], outputs[1]["o"])
    np.testing.assert_array_equal(outputs[0]["lse"], outputs[1]["lse"])


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_page_sizes(foscar, sample, page_size):
    report = foscar.json("run", "--input", sample, "--page-size", page_size)
    assert report["page_size"] == page_size
    assert report["rel_error_vs_dequantized"] <= KERNEL_TOLERANCE


def test_every_available_backend_runs(foscar, sample):
    names = [
        b["name"]
        for b in foscar.json("info")["backends"]
        if b["available"] and b["device"] == "cpu"
    ]
    assert "reference" in names
    for name in names:
        assert foscar.json("run", "--input", sample, "--backend", name)["backend"] == name
        forced = foscar.json("run", "--input", sample, env={"FOSCAR_FORCE_BACKEND": name})
        assert forced["backend"] == name


def test_table_names_what_was_run(foscar, sample):
    result = foscar("run", "--input", sample, "--format", "k2v2-token-g128-f32")
    assert result.returncode == 0 and result.stderr == ""
    assert "k2v2-token-g128-f32" in result.stdout and "6.40x" in result.stdout


def test_extension_repeats_the_sample(foscar, tmp_path):
    path = write_file(tmp_path / "in.safetensors", make_tensors(batch=1, kv_len=50))
    report = foscar.json("run", "--input", path, "--extend-to", 333)
    assert report["kv_len"] == 333 and report["rel_error_vs_dequantized"] <= KERNEL_TOLERANCE
    assert "--extend-to" in foscar.refuses("run", "--input", path, "--extend-to", 49)


def test_synthetic_input(foscar):
    report = foscar.json("run", "--synthetic", "2x70x6/2x64", "--format", "k2v2-token-g64-f32")
    assert [report[key] for key in KEYS[2:7]] == [2, 70, 6, 2, 64]
    for wrong in (
        "2x70x6/4x64",
        "2x70",
        "2x70x6/2x64x",
        "0x1x1/1x64",
        "x",
        "99999999999x1x1/1x64",
        "",
    ):
        assert "--synthetic" in foscar.refuses("run", "--synthetic", wrong)


def test_bf16_helpers_round_trip():
    bits = np.arange(0x7F80, dtype=np.uint16)
    np.testing.assert_array_equal(bf16_bits(bf16_values(bits)), bits)
