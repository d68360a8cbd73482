// A half step as the products see it: 32 tokens of a stage, and this lane's addresses inside it.
#pragma once

#include <cstdint>

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
// Row and column of a matrix fragment that belong to this lane: g = lane / 4, h = lane % 4.
__device__ inline int lane_g() { return lane_index() / 4; }
__device__ inline int lane_h() { return lane_index() % 4; }

// Tiles begin at multiples of 16 tokens, so a tile's offset and a token's offset inside its tile (or pair of tiles) just add
// up, whatever the page size.
struct FragmentOffsets {
  int k;  // row lane % 16 of a tile, chunk plane lane / 16
  int v;  // token `lane` of the 32 of a half step

  __device__ explicit FragmentOffsets(const StageLayout& stage) {
    k = stage.token_offset(lane_index() % 16) + (lane_index() / 16) * stage.chunk_stride;
    v = stage.v_codes_offset + stage.token_offset(lane_index());
    ptx::keep(k), ptx::keep(v);
  }
};

struct HalfView {
  std::uint32_t codes;  // shared address of the first token's codes of K
  std::uint32_t
      params;       // of the parameters, float4 [groups][32]: k_scale, k_offset, v_scale, v_offset
  int first_token;  // in the request
  int num_tokens;   // of the request from there on; may exceed 32
  bool masked;      // some row does not see all 32 tokens

  __device__ std::uint32_t entry(int group, int token) const {
    return params + (group * kHalfTokens + token) * 16;
  }
};

}  // namespace foscar::cuda
