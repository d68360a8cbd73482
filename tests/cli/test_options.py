"""Options, `info` and `selftest`."""

import json
import os
import subprocess

import pytest


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "subcommand"),
        (["fly"], "fly"),
        (["run"], "--input"),
        (["run", "--input", "a", "--synthetic", "1x1x1/1x64"], "--synthetic"),
        (["quantize", "--input", "a"], "--output"),
        (["inspect"], "input"),
        (["info", "--nonsense"], "nonsense"),
    ],
)
def test_usage_errors(foscar, args, expected):
    assert expected in foscar.refuses(*args)


@pytest.mark.parametrize(
    "name", ["", "k3v3-token-g128-f32", "k2v2-token-g128-f64", "k2v2-token-g7-f32", "x" * 500]
)
def test_format_names(foscar, sample, name):
    for command in (["run"], ["quantize", "--output", "unused"]):
        line = foscar.refuses(*command, "--input", sample, "--format", name)
        assert "format" in line and len(line) < 500


@pytest.mark.parametrize("page_size", [0, -1, 3, 512, 2**31 - 1])
def test_page_sizes_that_do_not_exist(foscar, sample, page_size):
    assert "page_size" in foscar.refuses("run", "--input", sample, "--page-size", page_size)


def test_group_larger_than_head_dim(foscar):
    line = foscar.refuses("run", "--synthetic", "1x8x2/1x64", "--format", "k2v2-token-g128-f32")
    assert "quant_group_size" in line and "128" in line and "64" in line


def test_unknown_backends(foscar, sample):
    assert "'abacus'" in foscar.refuses("run", "--input", sample, "--backend", "abacus")
    line = foscar.refuses("run", "--input", sample, env={"FOSCAR_FORCE_BACKEND": "abacus"})
    assert "FOSCAR_FORCE_BACKEND" in line and "'abacus'" in line


def test_info_says_nothing_before_an_error(foscar):
    for args in (["info"], ["info", "--json"]):
        line = foscar.refuses(*args, env={"FOSCAR_FORCE_BACKEND": "abacus"})
        assert "FOSCAR_FORCE_BACKEND" in line and "'abacus'" in line


@pytest.mark.parametrize("threads", ["abc", "0", "-3", "3x", "1e9", "99999999999999999999"])
def test_thread_counts_that_do_not_exist(foscar, sample, threads):
    env = {"FOSCAR_NUM_THREADS": threads}
    line = foscar.refuses("run", "--input", sample, "--backend", "cpu-scalar", env=env)
    assert line.startswith(f"foscar: FOSCAR_NUM_THREADS: got '{threads}'")


def test_inputs_that_cannot_fit_this_machine(foscar):
    assert "--synthetic" in foscar.refuses("run", "--synthetic", "4096x16777216x1/1x1")
    line = foscar.refuses(
        "run", "--synthetic", "16384x1x1/1x64", "--extend-to", 1 << 24, "--backend", "cpu-scalar"
    )
    assert line.startswith("foscar: --extend-to:") and "memory" in line


def test_output_must_be_a_plain_file(foscar, sample, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    bench = ["bench", "decode", "--backend", "cpu-scalar", "--batch-size", "1", "--kv-len", "64"]
    for args in (["run", "--input", sample], ["quantize", "--input", sample], bench):
        for path in (pipe, tmp_path, tmp_path / "absent" / "x"):
            assert str(path) in foscar.refuses(*args, "--output", path)
    assert pipe.is_fifo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "sample.safetensors"]


def test_full_standard_output(foscar):
    with open("/dev/full", "w") as full:
        result = subprocess.run([foscar.path, "info"], stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr.startswith(b"foscar: standard output: ")


def test_a_bench_report_survives_any_command_line(foscar):
    result = foscar(
        *["bench", "decode", "--backend", "cpu-scalar", "--batch-size", "1", "--kv-len", "64"],
        *["--repeats", "1", "--commit", "\udcff"],
    )
    assert result.returncode == 0 and json.loads(result.stdout)["commit"] == "\ufffd"


def test_help_and_version(foscar):
    for args in (["--help"], ["run", "--help"], ["--version"]):
        result = foscar(*args)
        assert result.returncode == 0 and result.stdout and not result.stderr


def test_info(foscar):
    report = foscar.json("info")
    assert report["version"] == foscar("--version").stdout.strip()
    assert {"k2v2-token-g128-f32", "k4v4-token-g128-f32", "k4v2-token-g64-f16"} <= set(
        report["formats"]
    )
    assert report["default_cpu_backend"] in [
        b["name"] for b in report["backends"] if b["available"]
    ]
    table = foscar("info")
    assert table.returncode == 0 and "reference" in table.stdout


def test_selftest(foscar):
    result = foscar("selftest")
    assert result.returncode == 0, result.stdout
    available = [
        b["name"]
        for b in foscar.json("info")["backends"]
        if b["available"] and b["device"] == "cpu"
    ]
    for name in available:
        assert any(line.split()[:2] == [name, "ok"] for line in result.stdout.splitlines())
    assert foscar("selftest", "--backend", "reference").stdout.startswith("reference")
