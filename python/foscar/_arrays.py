"""The two kinds of array that the package takes: torch tensors and numpy arrays."""

from __future__ import annotations

import importlib.util

import numpy

torch = None
if importlib.util.find_spec("torch") is not None:
    import torch


def is_torch(array) -> bool:
    return torch is not None and isinstance(array, torch.Tensor)


def is_plain_torch(array) -> bool:
    """A tensor with memory behind it, outside of a trace: the shared library can be called on it
    directly.
    """
    return (
        torch is not None
        and (type(array) is torch.Tensor or type(array) is torch.nn.Parameter)
        and not torch.compiler.is_compiling()
    )


def require_array(name: str, array) -> None:
    if not is_torch(array) and not isinstance(array, numpy.ndarray):
        raise TypeError(
            f"{name}: got {type(array).__name__}, allowed a torch.Tensor or a numpy.ndarray"
        )


def require_writable(name: str, array) -> None:
    if isinstance(array, numpy.ndarray) and not array.flags.writeable:
        raise ValueError(f"{name}: got a read-only array, allowed a writable one")


def readable(array):
    """A numpy array as the library can take it: DLPack has no read-only arrays, so those are
    copied.
    """
    if isinstance(array, numpy.ndarray) and not array.flags.writeable:
        return array.copy()
    return array


def empty(shape, dtype, like):
    """`dtype` is one of the kind of `like`, or "float32"."""
    if is_torch(like):
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        return torch.empty(shape, dtype=dtype, device=like.device)
    return numpy.empty(shape, dtype)


def zeros(shape, dtype, like):
    if is_torch(like):
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        return torch.zeros(shape, dtype=dtype, device=like.device)
    return numpy.zeros(shape, dtype)
