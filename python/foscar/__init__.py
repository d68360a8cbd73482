"""FOSCAR: decode attention over 2- and 4-bit KV caches.

Works on torch tensors (CPU and CUDA) and on numpy arrays. `import foscar` needs neither a GPU nor
torch; where torch is installed, the operators are registered as torch.ops.foscar.*.
"""

from __future__ import annotations

from foscar import _library
from foscar._arrays import torch as _torch
from foscar.formats import (
    Backend,
    Support,
    backends,
    bits_per_element,
    page_bytes,
    page_head_bytes,
    resolve_backend,
    supported,
)
from foscar.functions import decode, dequantize, quantize_append

if _torch is not None:
    from foscar import operators as _operators  # noqa: F401  (registers them)

__version__ = str(_library.version())

__all__ = [
    "Backend",
    "Support",
    "backends",
    "bits_per_element",
    "decode",
    "dequantize",
    "page_bytes",
    "page_head_bytes",
    "quantize_append",
    "resolve_backend",
    "supported",
]
