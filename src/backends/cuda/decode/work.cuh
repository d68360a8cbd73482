// Who computes what, derived on the device from the lengths: nothing is planned on the host.
//
// A *row* is one (request, KV head, row block): one softmax over ceil(kv_len / 64) steps. The rows, one after the other, form a
// line: each takes one unit per step, and kRowOverhead units ahead of them for what a row costs besides its steps (its
// query, its output). Block b of B takes a contiguous share of the line, and each team of the block a contiguous share of
// that. A share may begin and end inside a row; such pieces are merged, first in the block, then across the blocks that share
// the row (epilogue.cuh).
//
//     line    |o--- row 0 ---|o- row 1 -|o------------- row 2 -------------|o-- row 3 --|
//     blocks  |    0    |    1    |    2    |    3    |    4    |    5    |    6    |
#pragma once

#include "backends/cuda/decode/config.cuh"

namespace foscar::cuda {

__device__ inline int steps_of(int kv_len) {
  return kv_len <= 0 ? 0 : (kv_len - 1) / kStepTokens + 1;
}

// Split of `total` items into `parts` shares, the first total % parts of them one longer.
struct EvenSplit {
  int base;
  int remainder;

  EvenSplit() = default;
  __device__ EvenSplit(int total, int parts)
      : base(total / parts), remainder(total - base * parts) {}
  __device__ int begin(int part) const { return part * base + min(part, remainder); }
  // The share that holds `item`.
  __device__ int part_of(int item) const {
    const int long_items = remainder * (base + 1);
    return item < long_items ? item / (base + 1) : remainder + (item - long_items) / base;
  }
};

// What a row costs besides its steps, in steps. Measured on an H200 (batch 64, one request of 128K tokens among short ones of
// 128): without it, teams that serve short rows finish last.
inline constexpr int kRowOverhead = 5;

// A position on the line: a step of a row.
struct Cursor {
  int request;
  int head;       // virtual head: kv_head * row_blocks + row block
  int step;       // inside the row
  int num_steps;  // of the row
  int kv_len;     // tokens of the request
  int line;       // position of the row's first step on the line

  // One past the last step of the row that lies before `line_end`.
  __device__ int end_step(int line_end) const { return min(num_steps, line_end - line); }
  // Whether the next row begins before `line_end`.
  __device__ bool row_follows(int line_end) const {
    return line + num_steps + kRowOverhead < line_end;
  }
  // To the first step of the next row; there must be one.
  __device__ void next_row(const DecodeKernelArgs& args, int num_heads) {
    step = 0;
    line += num_steps + kRowOverhead;
    if (++head < num_heads) return;
    head = 0;
    do {
      kv_len = args.table.kv_len(++request);
    } while (kv_len <= 0);
    num_steps = steps_of(kv_len);
  }
};

// A team's share of the line.
struct TeamShare {
  EvenSplit blocks;  // of the whole line
  int block_begin;   // where the block's share begins
  int end;           // where the team's share ends
  Cursor start;      // its first step
  bool empty;        // it has none

  // Called by a whole warp; lane i sums the requests of run i.
  __device__ TeamShare(const DecodeKernelArgs& args, int num_heads, int team, int num_teams) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int per_lane = (args.shape.batch_size + 31) / 32;
    const int first = min(lane * per_lane, args.shape.batch_size);
    const int last = min(first + per_lane, args.shape.batch_size);
    int own = 0;
    for (int b = first; b < last; ++b) own += row_units(args.table.kv_len(b));
    int inclusive = own;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int below = __shfl_up_sync(~0u, inclusive, delta);
      if (lane >= delta) inclusive += below;
    }
    const int total = __shfl_sync(~0u, inclusive, 31) * num_heads;
    blocks = EvenSplit(total, static_cast<int>(gridDim.x));
    block_begin = blocks.begin(static_cast<int>(blockIdx.x));
    const int block_end = blocks.begin(static_cast<int>(blockIdx.x) + 1);
    const EvenSplit teams(block_end - block_begin, num_teams);
    const int begin = block_begin + teams.begin(team);
    end = block_begin + teams.begin(team + 1);
    empty = begin == end;
    if (empty) return;
    // The last run that begins at or before the share. Runs without requests begin where their successor does.
    const int before = (inclusive - own) * num_heads;
    const int run = 31 - __clz(__ballot_sync(~0u, before <= begin));
    int inside = begin - __shfl_sync(~0u, before, run);
    int units = 0;
    for (start.request = run * per_lane;; ++start.request) {
      start.kv_len = args.table.kv_len(start.request);
      units = row_units(start.kv_len);
      if (inside < units * num_heads) break;
      inside -= units * num_heads;
    }
    start.num_steps = steps_of(start.kv_len);
    start.head = inside / units;
    inside -= start.head * units;
    start.line = begin - inside + kRowOverhead;
    start.step = max(inside - kRowOverhead, 0);
    empty = start.step >= start.end_step(end);  // all of it is overhead
  }

 private:
  // Units of a row; none if it has no keys.
  __device__ static int row_units(int kv_len) {
    return kv_len > 0 ? steps_of(kv_len) + kRowOverhead : 0;
  }
};

}  // namespace foscar::cuda
