"""A small decoder-only language model with the shape of Qwen3: RMSNorm, grouped-query attention
with per-head query/key norm and rotary positions, SwiGLU, tied embedding. Parameter names equal
those of transformers' Qwen3ForCausalLM without the prefix `model.`, so export.py only renames.

    x <- x + Wo attention(rope(norm(Wq n(x))), rope(norm(Wk n(x))), Wv n(x))
    x <- x + Wdown (silu(Wgate n(x)) * Wup n(x))

Used by train.py, export.py and generate.py.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 4096
    hidden_size: int = 384
    intermediate_size: int = 1024
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    def as_dict(self) -> dict:
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size]; the mean square is taken in float32 whatever x is."""
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * x32).to(x.dtype)


def rotary_table(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin [max_position, head_dim], float32; the second half repeats the first."""
    half = torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim
    angle = torch.outer(torch.arange(shape.max_position_embeddings, device=device).float(),
                        shape.rope_theta ** -half)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, length, head_dim]: pairs (i, i + head_dim / 2) turned by the position."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        s = self.shape = shape
        self.q_proj = nn.Linear(s.hidden_size, s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)
        self.q_norm = RMSNorm(s.head_dim, s.rms_norm_eps)
        self.k_norm = RMSNorm(s.head_dim, s.rms_norm_eps)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, length, hidden] to q [batch, heads, length, head_dim] and k, v with the
        key-value heads; q and k normed and rotated: what a KV cache holds."""
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        return rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyLM(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def initialise(self, seed: int) -> None:
        """Normal weights of deviation 0.02; the two projections into the residual stream scaled by
        1 / sqrt(2 layers), so that its variance does not grow with depth."""
        torch.manual_seed(seed)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                depth = math.sqrt(2 * self.shape.num_hidden_layers) if residual else 1.0
                nn.init.normal_(p, std=0.02 / depth)

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] int64 to the normed last hidden state [batch, length, hidden]."""
        cos, sin = rotary_table(self.shape, tokens.device)
        cos, sin = cos[:tokens.shape[1]], sin[:tokens.shape[1]]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocab]; the output matrix is the embedding."""
        return F.linear(self.hidden(tokens), self.embed_tokens.weight)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """logits [batch, length, vocab], targets [batch, length]; the mean loss in nats, float32."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
