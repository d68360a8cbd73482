// What one thread needs while it works on a piece of a decode call, and what a piece leaves behind.
// Plain arrays: these types are shared by translation units compiled for different instruction
// sets.
#pragma once

#include <cstdint>
#include <vector>

#include "core/work_map.h"

namespace foscar::cpu {

inline constexpr int kTileTokens = 16;
inline constexpr int kMaxBlockTokens = 256;
inline constexpr int kMaxBlockTiles = kMaxBlockTokens / kTileTokens;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxGroups = kMaxHeadDim / 32;
inline constexpr int kMaxRowBytes = kMaxHeadDim / 2;
inline constexpr int kTileRows = 4;  // query rows that share one pass over the codes of a block

// One query row (new token, query head) of the piece.
struct RowState {
  // The query as 16-bit fixed point, q ~= q_scale[group] * (high * 256 + low): [high,
  // low][channel].
  alignas(64) std::int8_t q_bytes[2][kMaxHeadDim];
  alignas(64) float q[kMaxHeadDim];  // the query itself, times sm_scale * log2(e) in dense decode
  alignas(64) std::uint16_t q_bf16[kMaxHeadDim];  // the query as it came, if it is BF16
  // Unnormalised output, sum of p * scale * code; order of channels: the accumulators' (values.h).
  alignas(64) float o[kMaxHeadDim];
  float q_scale[kMaxGroups];     // includes sm_scale * log2(e): logits are in base 2
  float q_sum[kMaxGroups];       // sum of the rounded query over the group's channels, same unit
  float offset_sum[kMaxGroups];  // sum of p * offset: the part of the output that all channels of a
                                 // group share
  float row_max;                 // base 2
  float row_sum;
  float largest_weight;  // of the current block, where softmax.h computes it
  int num_visible;       // tokens of the request that this row sees
  // What it does not see of those (modify.h): tokens before first_visible, and of the new tokens, which begin at new_begin, those whose
  // element of mask_row is 0. mask_row is null where there is no mask.
  int first_visible;
  int new_begin;
  const std::uint8_t* mask_row;
};

// The V scales of one group in one block.
struct ScaleRange {
  float largest;  // NaN if one is not finite
  bool one_pass;  // all are within kScaleSpread (generic/values.h) of the largest
};

static_assert(kMaxBlockTokens == kMaxHeadDim,
              "tiles of query bytes and of weight bytes have one stride");

struct DecodeScratch {
  std::vector<RowState> rows;

  // One block of tokens. Parameters are FP32, in lane order, 0 in slots that hold no token.
  alignas(64) float k_scale[kMaxGroups][kMaxBlockTokens];
  alignas(64) float k_offset[kMaxGroups][kMaxBlockTokens];
  alignas(64) float v_scale[kMaxGroups][kMaxBlockTokens];
  alignas(64) float v_offset[kMaxGroups][kMaxBlockTokens];
  alignas(64) float v_cancel[kMaxGroups]
                            [kMaxBlockTokens];  // -v_offset / v_scale, limited to the codes' range
  ScaleRange v_range[kMaxGroups];
  // Logits, then probabilities (or probability * scale where softmax.h says so), in lane order.
  alignas(64) float p[kTileRows][kMaxBlockTokens];
  alignas(64) float keep[kTileRows][kMaxBlockTokens];  // 1 for visible tokens; rows that hide some
  alignas(64) std::int8_t p_bytes[kTileRows][2][kMaxBlockTokens];  // [high, low], in token order
  // V codes of the block, four tokens interleaved: [chunk][token / 4 * 64 + byte of the chunk * 4 +
  // token % 4].
  alignas(64) std::uint8_t v_quads[kMaxRowBytes / 16][kMaxBlockTokens * 16];
  // Operands of tile products (generic/tiles.h): query bytes, rows of B, and C.
  alignas(64) std::int8_t q_tile[2 * kTileRows][kMaxHeadDim];
  alignas(64) std::uint8_t b_tiles[4 * 16 * 64];
  alignas(64) std::int32_t c_tile[2 * kTileRows][16];
  alignas(64) float weight[kMaxBlockTokens];  // p * v_scale of one row and group
  // Tiles copied together from pages of fewer than 16 tokens. The first 16 bytes of the parameters
  // are padding.
  alignas(64) std::uint8_t staged_codes[2][kMaxRowBytes * kMaxBlockTokens];
  alignas(64) std::uint8_t staged_params[16 + 2 * kMaxGroups * 8 * kMaxBlockTokens];
};

// Where a piece writes its state: R rows, numbered new token * gqa_group_size + head in the group.
struct PartialState {
  float* o;        // [R, head_dim], unnormalised
  float* row_max;  // [R], base 2; -inf where the row sees no token of the piece
  float* row_sum;  // [R]
};

}  // namespace foscar::cpu
