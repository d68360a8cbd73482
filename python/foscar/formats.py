"""What a cache costs and what can run it: questions that touch no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from foscar import _library


@dataclass(frozen=True)
class Backend:
    """One implementation of the library's operations."""

    name: str
    device: str  # "cpu" or "cuda": where its tensors lie
    available: bool  # on this machine
    description: str  # what it is, or why it is not available


@dataclass(frozen=True)
class Support:
    """Whether a decode can run; true in a condition when it can."""

    ok: bool
    reason: str  # why not, naming the nearest that can; empty when it can

    def __bool__(self) -> bool:
        return self.ok


def backends() -> list[Backend]:
    """Every backend that was compiled in, best first within a device."""
    return [
        Backend(str(name), str(device), bool(available), str(description))
        for name, device, available, description in _library.backends()
    ]


def resolve_backend(device: str, backend: str = "") -> str:
    """The backend that a call on tensors of `device` ("cpu" or "cuda") runs on.

    NotImplementedError if there is none; ValueError for a name that does not exist.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: got {device!r}, allowed 'cpu' or 'cuda'")
    return str(_library.resolved_backend(device == "cuda", backend))


def supported(
    format: str = "k2v2-token-g128-f32",
    *,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    page_size: int = 64,
    qo_len: int = 1,
    q_dtype: str = "bfloat16",
    backend: str | None = None,
) -> Support:
    """Whether `backend` (default: the one that CPU tensors get) decodes this problem here."""
    name = resolve_backend("cpu") if backend is None else backend
    reason = _library.unsupported_reason(
        format, head_dim, page_size, num_qo_heads, num_kv_heads, qo_len, q_dtype, name
    )
    return Support(not reason, str(reason))


@lru_cache(maxsize=256)
def page_head_bytes(format: str, head_dim: int, page_size: int) -> int:
    """Bytes of the block of one page and KV head: the last extent of a pool."""
    return int(_library.page_head_bytes(format, head_dim, page_size))


def page_bytes(format: str, num_kv_heads: int, head_dim: int, page_size: int) -> int:
    """Bytes of one page of one layer: `page_size` tokens of all KV heads, keys, values and
    parameters.
    """
    if num_kv_heads < 1:
        raise ValueError(f"num_kv_heads: got {num_kv_heads}, allowed at least 1")
    return num_kv_heads * page_head_bytes(format, head_dim, page_size)


def bits_per_element(format: str, head_dim: int = 128, page_size: int = 64) -> float:
    """Bits per stored number, parameters included: 2.5 for k2v2-token-g128-f32 at head_dim 128."""
    return float(_library.bits_per_element(format, head_dim, page_size))
