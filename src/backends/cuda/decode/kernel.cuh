// The decode kernel: one launch, one block per SM, each warp (or team of warps) on its own stream of pages.
//
//   TeamShare          lengths on the device -> this team's share of the line                      work.cuh
//   PageStream         bulk copies into a ring of stages, running ahead across row boundaries      load.cuh
//   ParamReader        (scale, offset) of 32 tokens -> table                                       params.cuh
//   Math               query operand, both products and the softmax                                query.cuh, fold.cuh
//   epilogue           finished rows to the output, pieces merged in the block and across blocks   epilogue.cuh
//
// There is no block-wide barrier before the epilogue (but one for teams of several warps, at the start). Cold code matters
// as much as the loop: a short call executes everything once, straight from L2.
#pragma once

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/epilogue.cuh"
#include "backends/cuda/decode/fold.cuh"
#include "backends/cuda/decode/load.cuh"
#include "backends/cuda/decode/params.cuh"
#include "backends/cuda/decode/work.cuh"

namespace foscar::cuda {

__host__ __device__ constexpr int align128(int bytes) { return (bytes + 127) / 128 * 128; }

// Dynamic shared memory, each part 128-byte aligned:
//   MergeState | TeamRing [teams] | parameter tables [warps] | partial results [warps] | stages [teams][num_stages]
// Bytes without the stages; sized for teams of one warp.
template <typename C>
__host__ __device__ constexpr int fixed_shared_bytes(int num_warps) {
  return align128(static_cast<int>(sizeof(MergeState))) +
         align128(num_warps * static_cast<int>(sizeof(TeamRing))) +
         num_warps * C::kParamTableBytes + align128(num_warps * C::kPartialBytes);
}

// Rows of requests without keys: o = 0, lse = -inf. Requests are spread over all warps of the grid.
template <typename C>
__device__ inline void write_empty_requests(const DecodeKernelArgs& args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 * static_cast<int>(gridDim.x) +
                   static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (int b = warp; b < args.shape.batch_size; b += num_warps * static_cast<int>(gridDim.x)) {
    if (args.table.kv_len(b) > 0) continue;
#pragma unroll 1
    for (int i = 0; i < args.num_rows * args.shape.num_kv_heads; ++i) {
      const OutputRow out(args, b, i / args.num_rows, i % args.num_rows);
      if (lane == 0) out.store_lse(0.0f, 0.0f);
      for (int channel = 2 * lane; channel < C::kHeadDim; channel += 64)
        out.store2(channel, 0.0f, 0.0f);
    }
  }
}

template <typename Math>
__device__ inline void decode_block(const DecodeKernelArgs& args) {
  using C = typename Math::C;
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int num_teams = num_warps / args.team_warps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int team = warp / args.team_warps;
  const int team_warp = warp - team * args.team_warps;
  const bool issues = team_warp == 0;
  const int num_heads = args.shape.num_kv_heads * args.row_blocks;

  MergeState& merge = *reinterpret_cast<MergeState*>(shared_bytes);
  std::uint8_t* free_bytes = shared_bytes + align128(static_cast<int>(sizeof(MergeState)));
  TeamRing& ring = reinterpret_cast<TeamRing*>(free_bytes)[team];
  free_bytes += align128(num_warps * static_cast<int>(sizeof(TeamRing)));
  float4* table = reinterpret_cast<float4*>(free_bytes + warp * C::kParamTableBytes);
  free_bytes += num_warps * C::kParamTableBytes;
  float* partials = reinterpret_cast<float*>(free_bytes);
  const std::uint32_t stages = ptx::shared_address(shared_bytes) +
                               fixed_shared_bytes<C>(num_warps) +
                               team * args.num_stages * args.stage.bytes;
  const std::uint32_t full = ptx::shared_address(&ring.full[0]);
  const std::uint32_t empty = ptx::shared_address(&ring.empty[0]);

  // The page table is needed as soon as the lengths are known: bring it into L2 meanwhile.
  const std::int64_t line =
      static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;  // of 128 bytes
  if (line * 32 < args.table.num_entries) ptx::prefetch_l2(args.table.pages + line * 32);
  if (issues && lane < args.num_stages) {
    ptx::mbarrier_init(full + lane * 8, 1);
    ptx::mbarrier_init(empty + lane * 8, args.team_warps);
    ptx::fence_mbarrier_init();
  }
  if (issues && lane < 2) merge.pieces[team][lane].row = -1;
  if (args.team_warps > 1) __syncthreads();  // the other warps of a team find the barriers ready
  __syncwarp();

  const TeamShare share(args, num_heads, team, num_teams);
  if (lane == 0) {
    ring.line_end = share.end;
    merge.blocks = share.blocks;
    merge.block_begin = share.block_begin;
  }
  __syncwarp();
  const FragmentOffsets fragments(args.stage);
  const ParamReader<C> params(args);
  PageStream stream(ring, stages);
  if (issues && !share.empty) stream.open(args, share.start);
  const auto fill_stages = [&] {
    for (int i = 0; i < args.num_stages && !stream.ended; ++i) stream.issue(args, num_heads);
  };
  write_empty_requests<C>(args);

  Math math;
  Cursor at = share.start;
  int stage = 0;
  std::uint32_t parity = 0;
  const int team_floats = args.team_warps * (C::kPartialBytes / 4);
  float* const team_partial = partials + team * team_floats;
  float* const partial = team_partial + team_warp * (C::kPartialBytes / 4);
  bool first_of_share = true;
  for (bool more = !share.empty; more;) {
    // One row, as far as the share goes.
    const int kv_head = at.head / args.row_blocks;
    const int first_row =
        (at.head - kv_head * args.row_blocks) * (args.team_warps * C::kRowsPerWarp) +
        team_warp * C::kRowsPerWarp;
    // Where much is to come, the first query goes ahead of the pages: behind all that the SMs request at once it would
    // wait for microseconds. Where little is, the pages may go first and arrive meanwhile.
    const bool little = ring.line_end - at.line - at.step <= args.num_stages;
    if (first_of_share && little) fill_stages();
    math.begin_row(args, at.request, kv_head, first_row, partial);
    if (first_of_share && !little) fill_stages();
    int visible[C::kColumnTiles];  // keys that the lane's row of each column tile sees
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      // Rows are ordered [new token][query head of the group]; a new token sees keys up to its own position.
      const int row = min(first_row + n * kRowsPerColumnTile + lane % 4, args.num_rows - 1);
      const int token = row / args.shape.gqa_group_size();
      visible[n] = at.kv_len - max(args.hidden_tokens - token, 0);
    }
    const int masked_from = at.kv_len - args.hidden_tokens;
    const int end_step = at.end_step(ring.line_end);
    const int end_token = min(end_step * kStepTokens, at.kv_len);

    // The loop runs once more than there are halves: the last time only to settle.
    bool second_half = false;
    for (int token = at.step * kStepTokens;; token += kHalfTokens) {
      const bool end_of_row = token >= end_token;
      const std::uint32_t stage_address = stages + stage * args.stage.bytes;
      const std::uint32_t half = stage_address + (second_half ? args.stage.half_offset : 0);
      bool settled = false;
      if (!end_of_row) {
        if (!second_half) ptx::mbarrier_wait(full + stage * 8, parity);
        HalfView view;
        view.first_token = token;
        view.masked = token + kHalfTokens > masked_from;
        view.ordinary = params.unpack(
            args, static_cast<const std::uint8_t*>(__cvta_shared_to_generic(stage_address)),
            second_half, at.kv_len - token, table);
        __syncwarp();
        settled = math.begin_half(args.stage, half, fragments, table, view, visible);
      }
      if (!settled) {
        math.settle(end_of_row);
        if (end_of_row) break;
      }
      math.finish_half(args.stage, half, fragments);
      __syncwarp();  // the table, and at the end of the stage its bytes, may be overwritten

      second_half = !second_half && token + kHalfTokens < end_token;
      if (second_half) continue;
      if (args.team_warps > 1 && lane == 0) ptx::mbarrier_arrive(empty + stage * 8);
      if (!stream.ended) {
        if (args.team_warps > 1) ptx::mbarrier_wait(empty + stage * 8, parity);
        stream.issue(args, num_heads);
      }
      if (++stage == args.num_stages) stage = 0, parity ^= 1;
    }

    const Piece piece{at.request * num_heads + at.head,
                      at.request,
                      at.head,
                      at.step,
                      end_step,
                      at.num_steps,
                      at.line};
    more = at.row_follows(ring.line_end);
    if (piece.complete()) {
      store_finished<C>(args, partial, at.request, kv_head, first_row);
    } else {
      const float* place = team_partial;
      if (more) {
        // The team's first row, begun by another: it makes room for the rows that follow.
        float* spilled = first_row_partials(args, team_floats, num_teams) + team * team_floats;
        copy_partial<C>(partial, spilled + team_warp * (C::kPartialBytes / 4));
        place = spilled;
      }
      const int slot = first_of_share ? 0 : 1;
      if (issues && lane == 0) merge.pieces[team][slot] = piece, merge.places[team][slot] = place;
    }
    __syncwarp();
    first_of_share = false;
    if (more) at.next_row(args, num_heads);
  }
  merge_pieces<C>(args, num_teams, merge);
}

// Registers decide the warps per SM.
template <typename C>
constexpr int max_warps() {
  if (C::kGroups > 1) return 8;
  return C::kColumnTiles * C::kHeadDim <= 128 ? 16 : 12;
}

template <typename C>
__global__ void __launch_bounds__(max_warps<C>() * 32, 1)
    decode_folded(const __grid_constant__ DecodeKernelArgs args) {
  decode_block<FoldedMath<C>>(args);
}

}  // namespace foscar::cuda
