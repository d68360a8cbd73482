"""Compiles the FlashInfer modules of the benchmark where nvcc is but no GPU.

    python3 -m benchmarks.peers.prebuild_flashinfer --out .fi_cache [--only SUBSTRING ...]

FlashInfer compiles a module at its first use, and decides by file times and command lines whether a
cached one still holds, so a cache folder built elsewhere is compiled again. It trusts without a
second look, however, what a package named `flashinfer_jit_cache` offers. This program writes such
a package: `--out` on PYTHONPATH is all that the GPU machine then needs. A module that is missing
there is compiled at first use as always.

Building takes nvcc, a host compiler, flashinfer, torch (a CPU build will do) and ninja. The link
step names libcuda; without a driver point FLASHINFER_EXTRA_LDFLAGS at a stub of it.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import time

os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

import torch  # noqa: E402  (the target must be set before FlashInfer reads it)

kGqaGroupSizes = (4, 8)
kPageSizes = (16, 32, 64, 128)

kPackageInit = '''"""Modules compiled ahead of time; FlashInfer looks for this package by name."""

import pathlib

__version__ = "{version}"


def get_jit_cache_dir() -> str:
    return str(pathlib.Path(__file__).parent / "modules")
'''


def module_specs() -> list:
    """The JIT specifications of every kernel the adapters of flashinfer_bf16.py call."""
    from flashinfer.jit.attention.modules import gen_batch_decode_module, gen_batch_prefill_module
    from flashinfer.jit.xqa import gen_xqa_module

    bf16, i32 = torch.bfloat16, torch.int32
    # Tensor-core decode is the paged prefill kernel with one query row per request.
    specs = [
        gen_batch_prefill_module("fa2", *(bf16,) * 3, i32, dim, dim, 0, False, False, False)
        for dim in (128, 64, 256)
    ]
    specs.append(gen_batch_decode_module(*(bf16,) * 3, i32, 128, 128, 0, False, False))
    specs += [
        gen_xqa_module(bf16, bf16, page_size, 128, group, False, bf16, 1, False)
        for page_size in kPageSizes
        for group in kGqaGroupSizes
    ]
    return specs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for PYTHONPATH")
    parser.add_argument("--only", nargs="*", default=[], help="build modules whose name has this")
    arguments = parser.parse_args()

    import flashinfer

    package = arguments.out / "flashinfer_jit_cache"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(kPackageInit.format(version=flashinfer.__version__))
    for spec in module_specs():
        if arguments.only and not any(part in spec.name for part in arguments.only):
            continue
        begin = time.monotonic()
        spec.build(verbose=False)
        target = package / "modules" / spec.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec.jit_library_path, target / f"{spec.name}.so")
        size = spec.jit_library_path.stat().st_size
        print(f"{spec.name}: {time.monotonic() - begin:.0f} s, {size} bytes", flush=True)


if __name__ == "__main__":
    main()
