"""Trains the example model on cache/tokens.npz.xz and writes a checkpoint and a JSON log.

    python train.py --seconds 240 --log training_log.json

With --seconds the number of steps is chosen after the first 40 from their measured speed, so that
loading, compiling and training end at that time after the start; a hard stop at the same time
guards against a slowdown. The log records the number: `--steps N` repeats the run, up to the order
of the atomic additions in the attention's backward pass. Learning rate: linear warm-up, then a
cosine to one tenth. A step whose gradient norm is not finite is skipped (found_inf).
"""

import argparse
import json
import math
import platform
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pack_tokens
import torch
from model import Shape, TinyLM, token_losses
from torch import Tensor, nn

START = time.time()
WARMUP_STEPS = 100
SPEED_STEPS = (20, 40)  # measured between these two; the first ones hold compilation
LOG_EVERY = 20


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tokens", type=Path, default=pack_tokens.TOKEN_FILE)
    p.add_argument("--checkpoint", type=Path, default=pack_tokens.CACHE / "checkpoint.pt")
    p.add_argument("--log", type=Path, default=pack_tokens.CACHE / "training_log.json")
    p.add_argument("--seconds", type=float, default=240.0, help="from the start of the program")
    p.add_argument("--steps", type=int, default=0, help="0: as many as fit into --seconds")
    p.add_argument("--batch", type=int, default=64, help="windows a step")
    p.add_argument("--context", type=int, default=2048, help="tokens a window")
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--evals", type=int, default=12, help="held-out losses along the way")
    p.add_argument("--heldout-limit", type=int, default=0, help="tokens; 0: all")
    p.add_argument("--no-compile", action="store_true")
    return p.parse_args()


class Windows:
    """Batches of [batch, context + 1] int64 token windows on the device. Each epoch cuts the stream
    at a new random phase and visits the windows in a new random order."""

    def __init__(self, tokens: np.ndarray, batch: int, context: int, seed: int, device: str):
        self.tokens = torch.from_numpy(tokens.astype(np.int32)).to(device)  # [n]
        self.span = torch.arange(context + 1, device=device)
        self.batch, self.context, self.device = batch, context, device
        self.rng = np.random.default_rng(seed)
        self.queue = np.zeros(0, np.int64)

    def next(self) -> Tensor:
        while len(self.queue) < self.batch:
            phase = self.rng.integers(self.context)
            count = (len(self.tokens) - 1 - phase) // self.context
            starts = phase + self.context * self.rng.permutation(count)
            self.queue = np.concatenate((self.queue, starts))
        starts, self.queue = self.queue[:self.batch], self.queue[self.batch:]
        at = torch.from_numpy(starts).to(self.device)[:, None] + self.span
        return self.tokens[at].long()


@torch.no_grad()
def heldout_loss(model: TinyLM, heldout: Tensor, context: int, device: str) -> float:
    """Mean loss (nats) of heldout[1:], in windows side by side, each starting without a past."""
    total, count = 0.0, len(heldout) - 1
    rows = count // context
    inputs, targets = heldout[:rows * context], heldout[1:rows * context + 1]
    pieces = list(zip(inputs.view(rows, context).split(16), targets.view(rows, context).split(16),
                      strict=True))
    if rows * context < count:
        pieces.append((heldout[None, rows * context:-1], heldout[None, rows * context + 1:]))
    for x, y in pieces:
        with torch.autocast(device, torch.bfloat16):
            logits = model(x)
        total += token_losses(logits, y).item() * y.numel()
    return total / count


def learning_rate(step: int, total: int, peak: float) -> float:
    if step < WARMUP_STEPS:
        return peak * (step + 1) / WARMUP_STEPS
    part = (step - WARMUP_STEPS) / max(1, total - WARMUP_STEPS)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, part))))


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": args.weight_decay},
              {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)


def mean_loss(model: TinyLM, head, window: Tensor, device: str) -> Tensor:
    with torch.autocast(device, torch.bfloat16):
        hidden = model.hidden(window[:, :-1])
        return head(hidden, model.embed_tokens.weight, window[:, 1:])


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return token_losses(nn.functional.linear(hidden, weight), targets)


def compiled_head(model: TinyLM, windows: Windows, device: str):
    """Compiles each block (one graph, shared by all) and the loss; eager where that fails."""
    for layer in model.layers:
        layer.compile(dynamic=False)
    head = torch.compile(head_loss, dynamic=False)
    try:
        mean_loss(model, head, windows.next(), device).backward()
        model.zero_grad(set_to_none=True)
        return head, True
    except Exception as error:  # a missing compiler must not cost the run
        print(f"torch.compile failed ({type(error).__name__}: {str(error)[:300]}); running eagerly")
        model.zero_grad(set_to_none=True)
        for layer in model.layers:
            layer._compiled_call_impl = None
        return head_loss, False


def train(model: TinyLM, windows: Windows, heldout: Tensor, args: argparse.Namespace, device: str
          ) -> dict:
    """Runs the optimisation; returns the figures of the run for the log."""
    head, compiled = head_loss, False
    if not args.no_compile:
        head, compiled = compiled_head(model, windows, device)
    optimizer = make_optimizer(model, args)
    curve, evals, skipped = [], [], torch.zeros((), device=device)
    running = torch.zeros((), device=device)
    total = args.steps or 10**9
    next_eval, step, speed_start, began = 0, 0, 0.0, time.time()
    last_log, last_step = began, 0
    print(f"ready after {began - START:.0f} s, compiled: {compiled}", flush=True)
    while step < total:
        lr = learning_rate(step, total, args.lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = mean_loss(model, head, windows.next(), device)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.found_inf = (~torch.isfinite(norm)).float()
        skipped += optimizer.found_inf
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
        step += 1
        if not args.steps and step in SPEED_STEPS:
            loss.item()  # waits for the device
            if step == SPEED_STEPS[0]:
                speed_start = time.time()
            else:
                per_step = (time.time() - speed_start) / (SPEED_STEPS[1] - SPEED_STEPS[0])
                left = args.seconds - (time.time() - START) - 4.0  # evaluations and the ending
                total = step + max(1, int(0.985 * left / per_step))
                print(f"{1e3 * per_step:.1f} ms a step: {total} steps planned", flush=True)
        if step % LOG_EVERY == 0 or step == total:
            value = running.item() / (step - last_step)
            now = time.time()
            rate = args.batch * args.context * (step - last_step) / (now - last_log)
            curve.append([step, round(value, 4), round(lr, 6)])
            if step % (10 * LOG_EVERY) == 0 or step <= 5 * LOG_EVERY:
                print(f"step {step:6d} of {total}  loss {value:.4f}  lr {lr:.2e}  "
                      f"{rate / 1e6:.3f} M tokens/s  {now - START:.0f} s", flush=True)
            running.zero_()
            last_log, last_step = now, step
            if total < 10**9 and step >= next_eval and step < total:
                evals.append([step, round(evaluate(model, heldout[:65537], args, device), 4)])
                print(f"step {step:6d}  held-out sample loss {evals[-1][1]:.4f}", flush=True)
                next_eval = step + max(1, total // args.evals)
            if not args.steps and now - START > args.seconds:
                print(f"stopped by the clock after step {step} of {total}", flush=True)
                break
    return {"steps": step, "steps_planned": total, "compiled": compiled,
            "skipped_steps": int(skipped.item()), "train_seconds": round(time.time() - began, 1),
            "tokens_seen": step * args.batch * args.context,
            "curve_step_loss_lr": curve, "heldout_sample_step_loss": evals}


def evaluate(model: TinyLM, heldout: Tensor, args: argparse.Namespace, device: str) -> float:
    """heldout_loss without the compiled graphs: their shapes are those of training."""
    with torch.compiler.set_stance("force_eager"):
        return heldout_loss(model, heldout, args.context, device)


def describe(nats: float, tokens: int, text_bytes: int) -> dict[str, float]:
    return {"nats_per_token": round(nats, 4), "perplexity": round(math.exp(nats), 2),
            "bits_per_byte": round(nats * tokens / math.log(2) / text_bytes, 4)}


def main() -> None:
    args = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    train_tokens, heldout_tokens, meta = pack_tokens.load(args.tokens)
    shape = Shape(vocab_size=meta["vocab_size"], num_hidden_layers=args.layers)
    model = TinyLM(shape)
    model.initialise(args.seed)
    model.to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {len(train_tokens)} training tokens, device {device}",
          flush=True)
    limit = args.heldout_limit or len(heldout_tokens)
    heldout = torch.from_numpy(heldout_tokens[:limit].astype(np.int64)).to(device)
    windows = Windows(train_tokens, args.batch, args.context, args.seed, device)
    run = train(model, windows, heldout, args, device)

    master = evaluate(model, heldout, args, device)
    with torch.no_grad():  # from here on the weights are those that export.py writes
        for name, p in model.named_parameters():
            p.copy_(p.bfloat16())
            if not torch.isfinite(p).all():
                raise ValueError(f"parameter {name} is not finite after training")
    rounded = evaluate(model, heldout, args, device)
    count, size = len(heldout_tokens) - 1, meta["heldout_bytes"]
    log = {
        "command": " ".join(["python"] + [Path(word).name for word in sys.argv]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__, "shape": shape.as_dict(), "parameters": parameters,
        "batch": args.batch, "context": args.context, "peak_lr": args.lr,
        "weight_decay": args.weight_decay, "seed": args.seed,
        "train_tokens": len(train_tokens), "train_bytes": meta["train_bytes"],
        "train_documents": meta["train_documents"],
        "heldout_tokens": limit, "heldout_bytes": size,
        "heldout_documents": len(meta["heldout_documents"]),
        "heldout": {"bf16_weights": describe(rounded, count, size),
                    "fp32_weights": describe(master, count, size),
                    "unigram": describe(meta["baselines"]["unigram"], count, size),
                    "trigram_kneser_ney": describe(meta["baselines"]["trigram"], count, size)},
        **run,
    }
    args.log.write_text(json.dumps(log, indent=1) + "\n")
    torch.save({"shape": shape.as_dict(), "state": model.state_dict()}, args.checkpoint)
    print(json.dumps(log["heldout"], indent=1))
    print(f"{run['steps']} steps, {run['tokens_seen']} tokens, {time.time() - START:.0f} s in all")


if __name__ == "__main__":
    main()
