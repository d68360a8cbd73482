"""The shared library: every function of src/bindings as a Python function of the same name.

It is called through TVM-FFI: it takes DLPack tensors (torch, numpy and others), runs on the stream
that is current in their framework, and depends on neither Python's nor torch's version.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import tvm_ffi

_NAME = "libfoscar_python.so"


def _load() -> tvm_ffi.Module:
    # A build tree's library may be named instead of the installed one.
    path = Path(os.environ.get("FOSCAR_LIBRARY") or Path(__file__).with_name(_NAME))
    if not path.is_file():
        raise ImportError(
            f"foscar: {path} does not exist; install the package (pip install .), or name a "
            f"build's {_NAME} "
            "in the environment variable FOSCAR_LIBRARY"
        )
    return tvm_ffi.load_module(str(path))


_module = _load()

version = _module.get_function("version")
backends = _module.get_function("backends")
resolved_backend = _module.get_function("resolved_backend")
unsupported_reason = _module.get_function("unsupported_reason")
page_head_bytes = _module.get_function("page_head_bytes")
bits_per_element = _module.get_function("bits_per_element")
decode_workspace_bytes = _module.get_function("decode_workspace_bytes")

decode = _module.get_function("decode")
quantize_append = _module.get_function("quantize_append")
dequantize = _module.get_function("dequantize")
merge_states = _module.get_function("merge_states")

# The arguments of src/bindings/attention.cc, for explained().
_ARGUMENTS = {
    "decode": (
        "q", "pool", "format", "head_dim", "page_size", "block_table", "kv_len", "kv_indptr",
        "kv_indices",
        "kv_last_page_len", "out", "lse", "workspace", "sm_scale", "causal", "kv_chunk_size",
        "backend",
    ),
    "quantize_append": (
        "k", "v", "slot_mapping", "pool", "format", "head_dim", "page_size", "backend",
    ),
    "dequantize": (
        "pool", "format", "head_dim", "page_size", "block_table", "kv_len", "kv_indptr",
        "kv_indices",
        "kv_last_page_len", "k_out", "v_out", "backend",
    ),
    "merge_states": ("v", "lse", "out", "lse_out", "backend"),
}  # fmt: skip
_MISMATCH = re.compile(
    r"Mismatched type on argument #(\d+) when calling: `(\w+)\(.*Expected `(.*)` but got `(.*)`"
)


def explained(error: Exception) -> Exception:
    """The calling convention's message for an argument of the wrong kind, with the argument's
    name; else `error`.
    """
    match = _MISMATCH.search(str(error))
    if match is None or match.group(2) not in _ARGUMENTS:
        return error
    name = _ARGUMENTS[match.group(2)][int(match.group(1))]
    expected = (
        "a torch.Tensor or a numpy.ndarray" if "DLTensor" in match.group(3) else match.group(3)
    )
    return TypeError(f"{name}: got {match.group(4)}, allowed {expected}")
