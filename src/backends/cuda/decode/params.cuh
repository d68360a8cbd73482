// Unpacks the (scale, offset) pairs of 32 tokens, once per token and group, into a per-warp table that the tiles read as float4:
//
//     entry[group][token] = { k_scale, k_offset, log2(v_scale), v_offset }
//
// This is the only place where the parameter type matters. Tokens beyond the request read as v_scale = 0, v_offset = 0,
// whatever bytes lie in their slot; their logits are silenced by the mask in fold.cuh. A group whose V codes are all 0 (a flat
// group) reads as v_scale = 0 too: its scale means nothing, and must not set the reference for its neighbours.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/load.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

// log2 of the V scales that the cheap test of the references covers (fold.cuh).
inline constexpr float kOrdinaryLog2Scale = 24.0f;

__device__ inline float2 unpack_pair(std::uint32_t bits, bool is_half) {
  if (is_half) return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

// Two neighbouring pairs at `address`.
__device__ inline float4 load_pairs(const std::uint8_t* address, DType dtype) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float4*>(address);
  const uint2 bits = *reinterpret_cast<const uint2*>(address);
  const float2 a = unpack_pair(bits.x, dtype == DType::kF16);
  const float2 b = unpack_pair(bits.y, dtype == DType::kF16);
  return {a.x, a.y, b.x, b.y};
}

__device__ inline float2 load_pair(const std::uint8_t* address, DType dtype) {
  if (dtype == DType::kF32) return *reinterpret_cast<const float2*>(address);
  return unpack_pair(*reinterpret_cast<const std::uint32_t*>(address), dtype == DType::kF16);
}

// A warp's view of the parameters inside a stage: lane i unpacks token i of a half step.
template <typename C>
struct ParamReader {
  int row;      // byte offset of the token's parameter row in the stage
  int v_codes;  // and of its first chunk of V codes

  __device__ explicit ParamReader(const DecodeKernelArgs& args) {
    const int token = static_cast<int>(threadIdx.x) % 32;
    row = args.stage.params_offset + args.stage.params_row(token);
    v_codes = args.stage.v_codes_offset + args.stage.token_offset(token);
  }

  // Fills `table` [kGroups][32] for a half of `stage` of which num_tokens tokens exist. Returns whether all their V
  // scales are ordinary. Called by a whole warp; the caller synchronizes before reading.
  __device__ bool unpack(const DecodeKernelArgs& args, const std::uint8_t* stage, bool second_half,
                         int num_tokens, float4* table) const {
    const std::uint8_t* pairs = stage + row + (second_half ? args.stage.half_params_offset : 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint8_t* codes = stage + v_codes + (second_half ? args.stage.half_offset : 0);
    std::uint32_t used[C::kGroups] = {};  // bits of the group's codes that are set
#pragma unroll
    for (int chunk = 0; chunk < C::kVChunks; ++chunk) {
      const uint4 words = *reinterpret_cast<const uint4*>(codes + chunk * args.stage.chunk_stride);
      const std::uint32_t any = words.x | words.y | words.z | words.w;
#pragma unroll
      for (int p = 0; p < C::kVPositions; ++p) {
        if constexpr (C::kGroups == 1) {
          used[0] |= any;
        } else {
          used[C::v_tile_group(chunk, p)] |= any & position_mask(C::kVBits, p);
        }
      }
    }
    const bool exists = lane < num_tokens;
    bool ordinary = true;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      float4 entry = read(args, pairs, group);
      const bool has_codes = exists && used[group] != 0;
      entry.z = ptx::log2_approx(entry.z);
      ordinary = ordinary && (!has_codes || fabsf(entry.z) <= kOrdinaryLog2Scale);
      if (!has_codes) entry.z = -INFINITY;
      if (!exists) entry.w = 0.0f;
      table[group * kHalfTokens + lane] = entry;
    }
    return __all_sync(~0u, ordinary);
  }

 private:
  __device__ static float4 read(const DecodeKernelArgs& args, const std::uint8_t* pairs,
                                int group) {
    if constexpr (C::kGroups == 1) {
      return load_pairs(pairs, args.param_dtype);  // K's only pair, then V's
    } else {
      const int pair_bytes = args.param_dtype == DType::kF32 ? 8 : 4;
      const float2 k =
          load_pair(pairs + (group >> args.k_group_log2) * pair_bytes, args.param_dtype);
      const float2 v =
          load_pair(pairs + args.v_params_offset + (group >> args.v_group_log2) * pair_bytes,
                    args.param_dtype);
      return {k.x, k.y, v.x, v.y};
    }
  }
};

}  // namespace foscar::cuda
