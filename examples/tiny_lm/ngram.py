"""Unigram and trigram baselines on tokens; called by pack_tokens.py.

Trigram: interpolated Kneser-Ney with one discount an order, D = n1 / (n1 + 2 n2), where nk is the
number of distinct n-grams counted k times:

    p3(c | a b) = max(C(abc) - D3, 0) / C(ab.) + D3 N(ab*) / C(ab.) p2(c | b)
    p2(c | b)   = max(N(*bc) - D2, 0) / N(*b*) + D2 N(b*) / N(*b*)  p1(c)
    p1(c)       = max(N(*c) - D1, 0) / N(**)   + D1 |c : N(*c) > 0| / N(**) / vocabulary

C counts occurrences, N counts distinct neighbours marked `*`. A context never seen gets the next
lower order alone. Losses are in nats a token, on the same targets as the model: heldout[1:].
"""

import numpy as np


class Level:
    """One order of the interpolation. Keys are n-grams packed as base-`vocab` integers, the
    context being key // vocab; counts are those of the equations above."""

    def __init__(self, keys: np.ndarray, counts: np.ndarray, vocab: int):
        self.vocab = vocab
        self.keys = keys  # [n] int64, sorted, distinct
        self.counts = counts  # [n] int64
        once, twice = np.sum(counts == 1), np.sum(counts == 2)
        self.discount = float(once / (once + 2 * twice)) if once else 0.5
        context = keys // vocab
        starts = np.flatnonzero(np.r_[True, context[1:] != context[:-1]])
        self.contexts = context[starts]  # [m] int64, sorted, distinct
        self.totals = np.add.reduceat(counts, starts)  # [m]
        self.kinds = np.diff(np.r_[starts, len(keys)])  # [m] distinct successors

    def probability(self, query: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """query [n] packed n-grams, lower [n] the next lower order's p; returns p [n]."""
        at = np.minimum(np.searchsorted(self.keys, query), len(self.keys) - 1)
        count = np.where(self.keys[at] == query, self.counts[at], 0)
        context = query // self.vocab
        at = np.minimum(np.searchsorted(self.contexts, context), len(self.contexts) - 1)
        known = self.contexts[at] == context
        total = np.where(known, self.totals[at], 1)
        own = np.maximum(count - self.discount, 0.0) / total
        return np.where(known, own + self.discount * self.kinds[at] / total * lower, lower)


def build(train: np.ndarray, vocab: int) -> tuple[Level, Level, Level]:
    """The unigram, bigram and trigram levels of the Kneser-Ney model of train [n]."""
    t = train.astype(np.int64)
    keys3, counts3 = np.unique((t[:-2] * vocab + t[1:-1]) * vocab + t[2:], return_counts=True)
    keys2, counts2 = np.unique(keys3 % (vocab * vocab), return_counts=True)
    keys1, counts1 = np.unique(keys2 % vocab, return_counts=True)
    return Level(keys1, counts1, vocab), Level(keys2, counts2, vocab), Level(keys3, counts3, vocab)


def trigram_probability(levels: tuple[Level, Level, Level], a: np.ndarray, b: np.ndarray,
                        c: np.ndarray) -> np.ndarray:
    """p3(c | a b) for int64 arrays [n]."""
    unigram, bigram, trigram = levels
    vocab = unigram.vocab
    p = unigram.probability(c, np.full(len(c), 1.0 / vocab))
    p = bigram.probability(b * vocab + c, p)
    return trigram.probability((a * vocab + b) * vocab + c, p)


def baselines(train: np.ndarray, heldout: np.ndarray, vocab: int) -> dict[str, float]:
    """Mean negative log-likelihood (nats a token) of heldout[1:] under both baselines."""
    counts = np.bincount(train, minlength=vocab) + 1.0
    unigram = -np.log(counts / counts.sum())
    levels = build(train, vocab)
    h = np.r_[np.int64(0), heldout.astype(np.int64)]  # one more END_OF_TEXT as context
    everything = np.arange(vocab)
    for a, b in ((h[5], h[6]), (h[len(h) // 2], h[len(h) // 2 + 1]), (vocab - 1, vocab - 1)):
        total = trigram_probability(levels, np.full(vocab, a), np.full(vocab, b), everything).sum()
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"trigram distribution after ({a}, {b}) sums to {total}, not to 1")
    p = trigram_probability(levels, h[:-2], h[1:-1], h[2:])
    return {"unigram": float(unigram[heldout[1:]].mean()), "trigram": float(-np.log(p).mean()),
            "trigram_discounts": [level.discount for level in levels],
            "trigrams": int(len(levels[2].keys))}
