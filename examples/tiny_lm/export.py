"""Writes a checkpoint of train.py as BF16 safetensors shards that transformers loads, and a sample
of the model's KV cache over held-out text.

    python export.py --weights weights --sample ../../data/sample_kv.safetensors

Sample file, one row for one (layer, held-out document) pair, kv_len ragged, zeros past kv_len:
    q      [batch, num_qo_heads, 128] BF16           query of the last token, position kv_len - 1
    k, v   [batch, max_kv_len, num_kv_heads, 128] BF16
    kv_len [batch] int32
q and k are normed and rotated: the operands of attention. The header names model, layers, sources.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pack_tokens
import torch
from model import Shape, TinyLM, rotary_table
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 12_000_000
# (layer, kv_len, package): the row's text is the package's longest held-out document.
SAMPLE_ROWS = ((2, 1920, "anarchism"), (0, 1543, "linux-doc-6.1"), (3, 1024, "dict-gcide"),
               (5, 777, "sword-text-web"))


def load_checkpoint(path: Path) -> TinyLM:
    """The trained model with its BF16 weights held in float32 (train.py rounded them)."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model = TinyLM(Shape(**saved["shape"]))
    model.load_state_dict(saved["state"])
    return model.eval()


def write_weights(model: TinyLM, folder: Path) -> None:
    """model-*.safetensors, each with at most SHARD_BYTES of data, their index and config.json."""
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, value in model.state_dict().items():
        tensor = value.bfloat16().contiguous()
        if tensor.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1]["model." + name] = tensor
        room -= tensor.nbytes
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in shard}
    size = sum(t.nbytes for shard in shards for t in shard.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": size}, "weight_map": weight_map}, indent=1) + "\n")
    config = model.shape.as_dict()
    theta = config.pop("rope_theta")
    config |= {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16",
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "use_cache": True,
        "use_sliding_window": False, "sliding_window": None,
        # Both spellings: transformers 5 reads rope_parameters, older releases rope_theta.
        "rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def heldout_texts(heldout: np.ndarray, names: list[list[str]]) -> dict[str, tuple[str, np.ndarray]]:
    """For each package the name and tokens of its longest held-out document."""
    ends = np.flatnonzero(heldout == 0)
    if len(ends) != len(names) + 1:
        raise ValueError(f"held-out stream has {len(ends) - 1} documents, its list {len(names)}")
    longest: dict[str, tuple[str, np.ndarray]] = {}
    for (package, document), start, end in zip(names, ends[:-1], ends[1:], strict=True):
        # The end-of-text token before the document belongs to it: every training text had one.
        if package not in longest or end - start > len(longest[package][1]):
            longest[package] = (document, heldout[start:end])
    return longest


@torch.no_grad()
def capture(model: TinyLM, tokens: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """tokens [length] to q [heads, length, 128], k, v [kv_heads, length, 128] of one layer."""
    cos, sin = rotary_table(model.shape, tokens.device)
    cos, sin = cos[:len(tokens)], sin[:len(tokens)]
    with torch.autocast(tokens.device.type, torch.bfloat16):
        x = model.embed_tokens(tokens[None])
        for block in model.layers[:layer]:
            x = block(x, cos, sin)
        block = model.layers[layer]
        parts = block.self_attn.project(block.input_layernorm(x), cos, sin)
    return tuple(part[0].bfloat16() for part in parts)


def write_sample(model: TinyLM, heldout: np.ndarray, meta: dict, path: Path) -> None:
    texts = heldout_texts(heldout, meta["heldout_documents"])
    s = model.shape
    longest = max(kv_len for _, kv_len, _ in SAMPLE_ROWS)
    batch = len(SAMPLE_ROWS)
    q = torch.zeros(batch, s.num_attention_heads, s.head_dim, dtype=torch.bfloat16)
    k = torch.zeros(batch, longest, s.num_key_value_heads, s.head_dim, dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    sources = []
    for row, (layer, kv_len, package) in enumerate(SAMPLE_ROWS):
        document, tokens = texts[package]
        if len(tokens) < kv_len:
            raise ValueError(f"held-out document {document} has {len(tokens)} tokens, not {kv_len}")
        parts = capture(model, torch.from_numpy(tokens[:kv_len].astype(np.int64)), layer)
        q[row] = parts[0][:, -1]
        k[row, :kv_len], v[row, :kv_len] = (part.transpose(0, 1) for part in parts[1:])
        sources.append({"row": row, "layer": layer, "package": package, "document": document})
    path.parent.mkdir(parents=True, exist_ok=True)
    kv_len = torch.tensor([n for _, n, _ in SAMPLE_ROWS], dtype=torch.int32)
    save_file({"q": q, "k": k, "v": v, "kv_len": kv_len}, path, metadata={
        "model": "examples/tiny_lm (see its README.md)", "rows": json.dumps(sources),
        "rope": "applied to q and k", "softmax_scale": str(s.head_dim ** -0.5)})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--checkpoint", type=Path, default=pack_tokens.CACHE / "checkpoint.pt")
    p.add_argument("--tokens", type=Path, default=pack_tokens.TOKEN_FILE)
    p.add_argument("--weights", type=Path, default=pack_tokens.HERE / "weights")
    p.add_argument("--sample", type=Path,
                   default=pack_tokens.HERE.parents[1] / "data" / "sample_kv.safetensors")
    args = p.parse_args()
    model = load_checkpoint(args.checkpoint)
    write_weights(model, args.weights)
    _, heldout, meta = pack_tokens.load(args.tokens)
    write_sample(model, heldout, meta, args.sample)
    for path in sorted({*args.weights.iterdir(), args.sample}):
        print(f"{path.stat().st_size:>10d} {path.name}")


if __name__ == "__main__":
    main()
