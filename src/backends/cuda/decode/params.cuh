// Where the tiles find the (scale, offset) pairs of a half step's 32 tokens, as float4 per token and group:
//
//     entry[group][token] = { k_scale, k_offset, v_scale, v_offset }
//
// FP32 parameters of one group lie in the stage like this already, unless small pages scatter them; others are unpacked once per
// token and group into a table of the warp. This is the only place where the parameter type matters. Entries of tokens beyond
// the request hold whatever bytes lie in their slots: nothing may depend on them (fold.cuh).
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/decode/half.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

__device__ inline float2 unpack_pair(std::uint32_t bits, bool is_half) {
  if (is_half) return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

// A pair in shared memory, and two neighbouring ones.
__device__ inline float2 load_pair(std::uint32_t address, DType dtype) {
  if (dtype == DType::kF32) return ptx::load_shared2(address);
  return unpack_pair(ptx::load_shared_word(address), dtype == DType::kF16);
}
__device__ inline float4 load_pairs(std::uint32_t address, DType dtype) {
  if (dtype == DType::kF32) return ptx::load_shared4(address);
  const uint2 bits = ptx::load_shared_words2(address);
  const float2 a = unpack_pair(bits.x, dtype == DType::kF16);
  const float2 b = unpack_pair(bits.y, dtype == DType::kF16);
  return {a.x, a.y, b.x, b.y};
}

template <typename C>
struct ParamReader {
  int row;  // byte offset in a stage of the parameter row of token `lane` of the first half
  std::uint32_t table;  // shared address of the warp's table

  __device__ ParamReader(const DecodeKernelArgs& args, std::uint32_t warp_table)
      : row(args.stage.params_offset + args.stage.params_row(lane_index())), table(warp_table) {}

  // Shared address of entry[0][0] for a half of the stage at `stage`. Called by a whole warp; the previous half step must
  // have been read by all its lanes.
  __device__ std::uint32_t entries(const DecodeKernelArgs& args, std::uint32_t stage,
                                   bool second_half) const {
    const std::uint32_t half = stage + (second_half ? args.stage.half_params_offset : 0);
    if (C::kGroups == 1 && args.stage.direct_params) return half + args.stage.params_offset;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      ptx::store_shared4(table + (group * kHalfTokens + lane_index()) * 16,
                         read(args, half + row, group));
    }
    __syncwarp();
    return table;
  }

 private:
  __device__ static float4 read(const DecodeKernelArgs& args, std::uint32_t pairs, int group) {
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
