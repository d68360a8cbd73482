// Who computes what, derived on the device from the lengths: nothing is planned on the host.
//
// A *row* is one (request, KV head, row block): one softmax over ceil(kv_len / 64) steps. The rows, one after the other, form a
// line of steps. Block b of B takes a contiguous share of the line, and each team of the block a contiguous share of that.
// A share may begin and end inside a row; such pieces are merged, first in the block, then across the blocks that share
// the row (epilogue.cuh).
//
//     line    |--- row 0 ---|- row 1 -|------------- row 2 -------------|-- row 3 --|
//     blocks  |    0    |    1    |    2    |    3    |    4    |    5    |    6    |
#pragma once

#include "backends/cuda/decode/config.cuh"

namespace foscar::cuda {

__device__ inline int steps_of(int kv_len) { return (kv_len + kStepTokens - 1) / kStepTokens; }

// Split of `total` items into `parts` shares, the first total % parts of them one longer.
struct EvenSplit {
  int base;
  int remainder;

  EvenSplit() = default;
  __device__ EvenSplit(int total, int parts) : base(total / parts), remainder(total - base * parts) {}
  __device__ int begin(int part) const { return part * base + min(part, remainder); }
  // The share that holds `item`.
  __device__ int part_of(int item) const {
    const int long_items = remainder * (base + 1);
    return item < long_items ? item / (base + 1) : remainder + (item - long_items) / base;
  }
};

// A position on the line.
struct Cursor {
  int request;
  int head;       // virtual head: kv_head * row_blocks + row block
  int step;       // inside the row
  int num_steps;  // of the row
  int kv_len;     // tokens of the request

  // To the first step of the next row; there must be one.
  __device__ void next_row(const DecodeKernelArgs& args, int num_heads) {
    step = 0;
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
  int block_begin;   // steps before the block's share
  int begin;         // steps before the team's share
  int num_steps;
  Cursor start;

  // Called by a whole warp; lane i sums the requests of run i.
  __device__ TeamShare(const DecodeKernelArgs& args, int num_heads, int team, int num_teams) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int per_lane = (args.shape.batch_size + 31) / 32;
    const int first = min(lane * per_lane, args.shape.batch_size);
    const int last = min(first + per_lane, args.shape.batch_size);
    int own = 0;
    for (int b = first; b < last; ++b) own += steps_of(args.table.kv_len(b));
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
    begin = block_begin + teams.begin(team);
    num_steps = block_begin + teams.begin(team + 1) - begin;
    if (num_steps == 0) return;
    // The last run that begins at or before the share. Runs without steps begin where their successor does.
    const int before = (inclusive - own) * num_heads;
    const int run = 31 - __clz(__ballot_sync(~0u, before <= begin));
    int inside = begin - __shfl_sync(~0u, before, run);
    for (start.request = run * per_lane;; ++start.request) {
      start.kv_len = args.table.kv_len(start.request);
      start.num_steps = steps_of(start.kv_len);
      if (inside < start.num_steps * num_heads) break;
      inside -= start.num_steps * num_heads;
    }
    start.head = inside / start.num_steps;
    start.step = inside - start.head * start.num_steps;
  }
};

}  // namespace foscar::cuda
