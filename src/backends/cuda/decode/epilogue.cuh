// From a team's piece of a row to the output. A row that a team holds whole goes straight out. Pieces are merged by all
// threads of the block at its end and, where blocks share the row, by the last block to arrive. Merges run in the order
// of the line (work.cuh), so results are deterministic.
//
// A partial result is FP32, per row [o: kHeadDim | row_ref | row_sum | padding], o and row_sum in units of 2^row_ref. Merging
// is the algebra of core/softmax_state.h in base 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/work.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

inline constexpr float kLn2 = 0.693147180559945f;

// 1 / row_sum, and 0 for a row that saw no key.
__device__ inline float output_factor(float row_sum) {
  return row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
}

// Where query row `row` of (request, KV head) goes.
struct OutputRow {
  std::uint16_t* o;  // [head_dim]
  float* lse;        // or null
  bool is_half;

  __device__ OutputRow(const DecodeKernelArgs& args, int request, int kv_head, int row) {
    const int gqa = args.shape.gqa_group_size();
    const int token = row / gqa;
    const int head = kv_head * gqa + (row - token * gqa);
    o = static_cast<std::uint16_t*>(args.o.data) + request * args.o.batch_stride +
        token * args.o.token_stride + head * args.o.head_stride;
    lse = args.lse == nullptr
              ? nullptr
              : args.lse +
                    (static_cast<std::int64_t>(request) * args.shape.qo_len + token) *
                        args.shape.num_qo_heads +
                    head;
    is_half = args.o.dtype == DType::kF16;
  }
  // Channels (channel, channel + 1).
  __device__ void store2(int channel, float x, float y) const {
    if (is_half) {
      *reinterpret_cast<__half2*>(o + channel) = __floats2half2_rn(x, y);
    } else {
      *reinterpret_cast<__nv_bfloat162*>(o + channel) = __floats2bfloat162_rn(x, y);
    }
  }
  __device__ void store_lse(float row_ref, float row_sum) const {
    if (lse != nullptr) *lse = row_sum == 0.0f ? -INFINITY : (row_ref + log2f(row_sum)) * kLn2;
  }
};

// What part of which row a partial result covers.
struct Piece {
  int row;  // request * num_heads + head; -1: no piece
  int request;
  int head;   // virtual head
  int begin;  // steps of the row that it covers
  int end;
  int num_steps;   // of the whole row
  int line_begin;  // position of the row's first step on the line

  __device__ bool complete() const { return begin == 0 && end == num_steps; }
};

// Writes rows that a warp holds whole, `partial` in shared memory. Called by a whole warp.
template <typename C>
__device__ inline void store_finished(const DecodeKernelArgs& args, const float* partial,
                                      int request, int kv_head, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int r = 0; r < C::kRowsPerWarp && first_row + r < args.num_rows; ++r) {
    const float* source = partial + r * C::kPartialRowFloats;
    const float2 state = *reinterpret_cast<const float2*>(source + C::kHeadDim);
    const float factor = output_factor(state.y);
    const OutputRow out(args, request, kv_head, first_row + r);
    if (lane == 0) out.store_lse(state.x, state.y);
#pragma unroll
    for (int channel = 2 * lane; channel < C::kHeadDim; channel += 64) {
      const float2 o = *reinterpret_cast<const float2*>(source + channel);
      out.store2(channel, o.x * factor, o.y * factor);
    }
  }
}

// Where the teams of this block keep the partial results of their first rows when they go on to others.
__device__ inline float* first_row_partials(const DecodeKernelArgs& args, int team_floats,
                                            int num_teams) {
  return args.partials +
         static_cast<std::int64_t>(2 * gridDim.x + blockIdx.x * num_teams) * team_floats;
}

// Copies a warp's partial result out of shared memory.
template <typename C>
__device__ inline void copy_partial(const float* source, float* target) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < C::kPartialBytes / 16; i += 32) {
    reinterpret_cast<float4*>(target)[i] = reinterpret_cast<const float4*>(source)[i];
  }
}

// A row to merge: partial results in the order of the line. The first lies apart; the others follow at equal distances, or
// (stride 0) where `places` says, every second of it.
struct MergeJob {
  Piece piece;  // what they cover together
  const float* first;
  const float* second;
  const float* const* places;
  int stride;  // floats
  int count;
  float* target;  // a partial result again, or null: the row is complete and goes to the output

  __device__ bool across_blocks() const { return stride != 0; }
};

// Shared memory of the merges. Pieces and their places are by team: those of its first and of its last row, where it holds only
// a part of them.
struct MergeState {
  Piece pieces[kMaxWarps][2];
  const float* places[kMaxWarps][2];
  EvenSplit blocks;  // of the line
  int block_begin;   // of the block's share
  MergeJob jobs[2 * kMaxWarps];
  int num_jobs;
  // The block's pieces of rows that other blocks share: where its share begins, and where it ends.
  Piece shared_rows[2];
};

// Merges one row; each thread of the block takes pairs of channels. kAcross: the partial results lie in the workspace, written
// by other blocks, and must not come from this SM's L1. All loads of a batch are unconditional and independent (those beyond
// the end repeat the last one, with weight 0): a branch around each made the merge of 17 partial results take 30 thousand
// clocks instead of three L2 latencies.
template <typename C, bool kAcross>
__device__ inline void merge_row(const DecodeKernelArgs& args, const MergeJob& job) {
  constexpr int kPairs = C::kHeadDim / 2;
  constexpr int kBatch = 8;
  const int rows_per_team = args.team_warps * C::kRowsPerWarp;
  const int first_row = job.piece.head % args.row_blocks * rows_per_team;
  const int num_rows = min(rows_per_team, args.num_rows - first_row);
  const int count = job.count;
  const float* const first = job.first;
  const float* const second = job.second;
  const std::int64_t stride = job.stride;
  const auto load2 = [](const float* source) {
    const float2* pair = reinterpret_cast<const float2*>(source);
    return kAcross ? __ldcg(pair) : *pair;
  };
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x); item < num_rows * kPairs;
       item += static_cast<int>(blockDim.x)) {
    const int row = item / kPairs;
    const int channel = item % kPairs * 2;
    const int offset = row * C::kPartialRowFloats;
    float2 o{0.0f, 0.0f};
    float row_ref = kUnsetReference;
    float row_sum = 0.0f;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kBatch) {
      const float* source[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int index = min(begin + k, count - 1);
        if constexpr (kAcross) {
          source[k] = (index == 0 ? first : second + (index - 1) * stride) + offset;
        } else {
          source[k] = (index == 0 ? first : job.places[2 * max(index - 1, 0)]) + offset;
        }
      }
      float2 part[kBatch];
      float2 state[kBatch];  // row_ref, row_sum
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        part[k] = load2(source[k] + channel);
        state[k] = load2(source[k] + C::kHeadDim);
      }
      float merged_ref = row_ref;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (begin + k >= count) state[k].y = 0.0f;
        merged_ref =
            fmaxf(merged_ref, state[k].y == 0.0f ? kUnsetReference : state[k].x);  // empty: no say
      }
      const float own = ptx::exp2_approx(row_ref - merged_ref);
      o.x *= own, o.y *= own, row_sum *= own;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float weight = state[k].y == 0.0f ? 0.0f : ptx::exp2_approx(state[k].x - merged_ref);
        o.x = fmaf(part[k].x, weight, o.x);
        o.y = fmaf(part[k].y, weight, o.y);
        row_sum = fmaf(state[k].y, weight, row_sum);
      }
      row_ref = merged_ref;
    }
    if (job.target == nullptr) {
      const OutputRow out(args, job.piece.request, job.piece.head / args.row_blocks,
                          first_row + row);
      const float factor = output_factor(row_sum);
      out.store2(channel, o.x * factor, o.y * factor);
      if (channel == 0) out.store_lse(row_ref, row_sum);
    } else {
      __stcg(reinterpret_cast<float2*>(job.target + offset + channel), o);
      if (channel == 0)
        __stcg(reinterpret_cast<float2*>(job.target + offset + C::kHeadDim),
               float2{row_ref, row_sum});
    }
  }
}

// Whether a block whose share begins at `block_begin`, and that holds a part of the row, has it as its first.
__device__ inline bool begins_share(const Piece& row, int block_begin) {
  return block_begin >= row.line_begin - kRowOverhead;
}

// The block's own merges, one job per row of which its teams hold pieces. Called by the first warp: lane i looks at piece
// i % 2 of team i / 2.
__device__ inline void plan_block_jobs(const DecodeKernelArgs& args, int num_teams, int team_floats,
                                       MergeState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int team = lane / 2;
  const int which = lane % 2;
  if (lane < 2) state.shared_rows[lane].row = -1;
  __syncwarp();
  bool starts = false;  // a row that a team of this block began, or that its share begins with
  Piece piece{};
  if (team < num_teams) {
    piece = state.pieces[team][which];
    starts = piece.row >= 0 && (which == 1 || team == 0 || piece.begin == 0);
  }
  const unsigned starters = __ballot_sync(~0u, starts);
  if (lane == 0) state.num_jobs = __popc(starters);
  if (!starts) return;
  // The row goes on as the first of the next teams.
  int last_team = team;
  while (last_team + 1 < num_teams && state.pieces[last_team + 1][0].row == piece.row) ++last_team;
  if (last_team > team) piece.end = state.pieces[last_team][0].end;
  float* target = nullptr;
  if (!piece.complete()) {
    const int slot = begins_share(piece, state.block_begin) ? 0 : 1;
    target = args.partials + static_cast<std::int64_t>(2 * blockIdx.x + slot) * team_floats;
    state.shared_rows[slot] = piece;
  }
  state.jobs[__popc(starters & ((1u << lane) - 1))] = {
      piece, state.places[team][which], nullptr, &state.places[min(team + 1, kMaxWarps - 1)][0],
      0,     last_team - team + 1,      target};
}

// Announces one of this block's shared rows; true if all other blocks that share it have done so. Then the job of merging
// it is left in `job`. The counter returns to zero.
__device__ inline bool arrive_last(const DecodeKernelArgs& args, int team_floats, MergeState& state,
                                   int slot, MergeJob& job) {
  const Piece& piece = state.shared_rows[slot];
  if (piece.row < 0) return false;
  const int first_block = state.blocks.part_of(piece.line_begin);
  const int last_block = state.blocks.part_of(piece.line_begin + piece.num_steps - 1);
  __threadfence();
  const bool last = atomicAdd(&args.arrivals[first_block], 1) == last_block - first_block;
  if (!last) return false;
  args.arrivals[first_block] = 0;
  __threadfence();
  const int first_slot = begins_share(piece, state.blocks.begin(first_block)) ? 0 : 1;
  const float* first =
      args.partials + static_cast<std::int64_t>(2 * first_block + first_slot) * team_floats;
  const float* second =
      args.partials + static_cast<std::int64_t>(2 * first_block + 2) * team_floats;
  job = {piece, first, second, nullptr, 2 * team_floats, last_block - first_block + 1, nullptr};
  return true;
}

// Merges the pieces of this block, then the rows that it is the last to contribute to. Called by all threads.
template <typename C>
__device__ inline void merge_pieces(const DecodeKernelArgs& args, int num_teams,
                                    MergeState& state) {
  const int team_floats = args.team_warps * (C::kPartialBytes / 4);
  __syncthreads();  // the pieces are stored
  if (threadIdx.x < 32) plan_block_jobs(args, num_teams, team_floats, state);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < state.num_jobs; ++i) merge_row<C, false>(args, state.jobs[i]);
  __syncthreads();  // this block's partial results are stored
  if (threadIdx.x < 32) {
    MergeJob job;
    const bool last = threadIdx.x < 2 &&
                      arrive_last(args, team_floats, state, static_cast<int>(threadIdx.x), job);
    const unsigned merging = __ballot_sync(~0u, last);
    if (last) state.jobs[__popc(merging & ((1u << threadIdx.x) - 1))] = job;
    if (threadIdx.x == 0) state.num_jobs = __popc(merging);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < state.num_jobs; ++i) merge_row<C, true>(args, state.jobs[i]);
}

}  // namespace foscar::cuda
