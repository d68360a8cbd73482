"""Samples text from the committed weights on the CPU.

    python generate.py "The free software movement" --tokens 120 --temperature 0.8
"""

import argparse
import json
from pathlib import Path

import torch
from model import Shape, TinyLM
from safetensors.torch import load_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent


def load_weights(folder: Path) -> TinyLM:
    """The model of export.py's folder, in float32."""
    config = json.loads((folder / "config.json").read_text())
    model = TinyLM(Shape(**{name: config[name] for name in Shape().as_dict()}))
    state = {}
    for shard in sorted(folder.glob("model-*.safetensors")):
        state |= {k.removeprefix("model."): v.float() for k, v in load_file(shard).items()}
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def generate(model: TinyLM, ids: list[int], count: int, temperature: float, seed: int) -> list[int]:
    """Appends up to `count` sampled tokens to ids; stops at end of text (id 0). Temperature 0 takes
    the likeliest token. The whole text is run again for each token: it is short."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        window = ids[-model.shape.max_position_embeddings:]
        hidden = model.hidden(torch.tensor([window]))[0, -1]
        logits = model.embed_tokens.weight @ hidden
        if temperature > 0:
            p = torch.softmax(logits / temperature, dim=0)
            ids = ids + [int(torch.multinomial(p, 1, generator=rng))]
        else:
            ids = ids + [int(logits.argmax())]
        if ids[-1] == 0:
            break
    return ids


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("prompt", nargs="?", default="The purpose of this manual is")
    p.add_argument("--weights", type=Path, default=HERE / "weights")
    p.add_argument("--tokens", type=int, default=100)
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    model = load_weights(args.weights)
    ids = [0] + tokenizer.encode(args.prompt).ids  # training texts start after end of text
    ids = generate(model, ids, args.tokens, args.temperature, args.seed)
    print(tokenizer.decode(ids[1:], skip_special_tokens=True))


if __name__ == "__main__":
    main()
