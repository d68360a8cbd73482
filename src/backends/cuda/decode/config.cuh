// Compile-time shape of one decode kernel, and the run-time arguments that all of them share.
//
// Pages arrive in steps of 64 tokens and are processed by halves of 32: two tiles of 16 tokens, the M of mma.m16n8k32. KV is
// operand A (16 rows x 32 bytes of codes), the query rows of one KV head are the columns of B: a row takes two
// columns, the high and the low byte of a 16-bit fixed-point number, so a *column tile* of 8 is 4 query rows.
#pragma once

#include <cstdint>

#include "core/fold.h"
#include "dispatch/backend.h"
#include "foscar/format/packing.h"

namespace foscar::cuda {

inline constexpr int kStepTokens = 64;
inline constexpr int kTileTokens = 16;
inline constexpr int kHalfTokens = 2 * kTileTokens;
inline constexpr int kRowsPerColumnTile = 4;
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxWarps = 16;

// Stands for "no reference yet"; finite, so that a masked logit (-inf) minus it is still -inf.
inline constexpr float kUnsetReference = -3.0e38f;

// kKBits, kVBits in {2, 4}; kHeadDim in {64, 128, 256}; kColumnTiles: 4-row tiles per warp; kGroups: parameter groups
// per row that the kernel keeps apart: 1, or head_dim / 32 (which also serves groups of 64 and 128).
template <int kKBits_, int kVBits_, int kHeadDim_, int kColumnTiles_, int kGroups_>
struct Config {
  static constexpr int kKBits = kKBits_;
  static constexpr int kVBits = kVBits_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kColumnTiles = kColumnTiles_;
  static constexpr int kGroups = kGroups_;
  static_assert(kGroups == 1 || kGroups == kHeadDim / 32);

  static constexpr int kRowsPerWarp = kColumnTiles * kRowsPerColumnTile;
  static constexpr int kKRowBytes = row_bytes(kHeadDim, kKBits);
  static constexpr int kVRowBytes = row_bytes(kHeadDim, kVBits);
  static constexpr int kKChunks = kKRowBytes / kChunkBytes;
  static constexpr int kVChunks = kVRowBytes / kChunkBytes;
  static constexpr int kVPositions = codes_per_byte(kVBits);
  // QK: product i covers channels 32i .. 32i+31 of 16 tokens.
  static constexpr int kKProducts = kHeadDim / 32;
  // PV: output tile (chunk c, position p) covers channels 16c + kVRowBytes*p .. +15.
  static constexpr int kVTiles = kHeadDim / 16;

  static constexpr int v_tile_group(int chunk, int position) {
    return kGroups == 1 ? 0 : (16 * chunk + kVRowBytes * position) / 32;
  }

  // Bytes of the per-warp table of unpacked parameters: one float4 per token of a half step and group.
  static constexpr int kParamTableBytes = kHalfTokens * kGroups * 16;
  // A partial result of one warp, FP32: per row the unnormalised o, then (row_ref, row_sum), padded so that the rows of a
  // column tile start in different banks.
  static constexpr int kPartialRowFloats = kHeadDim + 8;
  static constexpr int kPartialBytes = kRowsPerWarp * kPartialRowFloats * 4;
};

// Where things lie inside a stage, bytes (load.cuh). Computed on the host: constants of the launch cost the kernel neither
// registers nor instructions.
struct StageLayout {
  int bytes;             // of a stage
  int tokens_per_block;  // min(page_size, 64)
  int tokens_log2;
  int block_stride;       // between the page blocks of a stage
  int chunk_stride;       // between chunk planes
  int v_codes_offset;     // inside a block
  int params_offset;      // inside a block
  int params_row_stride;  // between the tokens of a block
  int tile_offset;        // from the first tile of a half to the second, in each plane
  int half_offset;        // from the first half to the second
  int half_params_offset;

  FOSCAR_HD constexpr int block_offset(int token) const {
    return (token >> tokens_log2) * block_stride;
  }
  FOSCAR_HD constexpr int slot(int token) const { return token & (tokens_per_block - 1); }
  // Of token's 16 bytes in the first chunk plane.
  FOSCAR_HD constexpr int token_offset(int token) const {
    return block_offset(token) + slot(token) * kChunkBytes;
  }
  // Of token's parameter row from that of token 0.
  FOSCAR_HD constexpr int params_row(int token) const {
    return block_offset(token) + slot(token) * params_row_stride;
  }
};

// What every kernel instance gets; passed by value.
struct DecodeKernelArgs {
  DecodeShape shape;
  RowView q;
  RowView o;
  float* lse;  // [batch_size, qo_len, num_qo_heads] or null
  PoolView pool;
  PageTableView table;

  // Page geometry, bytes where not said otherwise.
  int page_log2;  // log2(page_size)
  int page_head_bytes;
  int params_offset;
  int params_row_stride;
  int v_params_offset;  // of V's first pair inside a parameter row, which K's pairs begin
  DType param_dtype;
  int k_group_log2;  // log2 of a parameter group, in units of 32 channels
  int v_group_log2;

  float sm_scale_log2;  // sm_scale * log2(e)
  int hidden_tokens;  // newest keys that a request's first new token does not see: qo_len - 1 if causal, else 0

  // Schedule.
  int num_rows;    // query rows per KV head: qo_len * gqa_group_size
  int row_blocks;  // how often a KV head is read: ceil(num_rows / rows of a team)
  int team_warps;  // warps that share one stream of pages
  int num_stages;  // ring slots per team
  StageLayout stage;

  // Workspace.
  float* partials;  // [2 * num_blocks + teams][team_warps][rows per warp][kPartialRowFloats]
  int*
      arrivals;  // [num_blocks], zero between calls; the row that blocks b, b+1 .. share counts at b
};

}  // namespace foscar::cuda
