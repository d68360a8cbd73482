// The query as operand B of the QK products: 16-bit fixed point per row, split into two signed bytes,
//
//     q ~= unit * (256 * high + low),     high, low in -128 .. 127,     |256 * high + low| <= 127 * 256,
//
// in the columns 2r (high) and 2r+1 (low) of row r's column tile. Each parameter group of a row has its own `unit`, a power
// of two, so BF16 elements down to 1/64 of the group's largest (FP16: 1/8) are represented exactly and smaller ones to within
// unit / 2. Product i takes channels 32i .. 32i+31.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/decode/config.cuh"

namespace foscar::cuda {

inline constexpr float kLargestFixed = 32512.0f;  // 127 * 256
// Adding 1.5 * 2^23 to a float of magnitude below 2^22 rounds it to an integer and leaves it, in two's complement, in the
// low bits of the sum.
inline constexpr float kRoundingMagic = 12582912.0f;

// Two packed BF16 or FP16 elements.
__device__ inline float2 unpack_query2(std::uint32_t word, bool is_half) {
  if (is_half) return __half22float2(*reinterpret_cast<const __half2*>(&word));
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

template <typename C>
struct QueryOperand {
  std::uint32_t b[C::kColumnTiles][C::kKProducts][2];
  // For the row of this lane's logits (row h of the column tile):
  float unit[C::kColumnTiles]
            [C::kGroups];  // logit * log2(e) per unit of 16 * integer sum; not negative
  float sum[C::kColumnTiles][C::kGroups];  // 16 * sum of the integers over the group's channels

  // Loads rows first_row .. first_row + kRowsPerWarp of (request, KV head); rows that do not exist read as 0.
  __device__ void load(const DecodeKernelArgs& args, int request, int kv_head, int first_row) {
    const int column = static_cast<int>(threadIdx.x) % 32 / 4;
    const int h = static_cast<int>(threadIdx.x) % 4;
    const int gqa = args.shape.gqa_group_size();
    uint2 raw[C::kColumnTiles][C::kKProducts]
             [2];  // this lane's channels: 32i + 4h .. +3 and 32i + 16 + 4h .. +3
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      const int row = first_row + n * kRowsPerColumnTile + column / 2;
      const int token = row / gqa;
      const std::uint16_t* q = static_cast<const std::uint16_t*>(args.q.data) +
                               request * args.q.batch_stride + token * args.q.token_stride +
                               (kv_head * gqa + row - token * gqa) * args.q.head_stride + 4 * h;
#pragma unroll
      for (int i = 0; i < C::kKProducts; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          raw[n][i][j] = {0, 0};
          if (row < args.num_rows)
            raw[n][i][j] = __ldg(reinterpret_cast<const uint2*>(q + 32 * i + 16 * j));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) convert_tile(args, raw[n], n);
  }

 private:
  __device__ void convert_tile(const DecodeKernelArgs& args, const uint2 (&raw)[C::kKProducts][2],
                               int n) {
    const int column =
        static_cast<int>(threadIdx.x) % 32 / 4;  // of operand B: row column / 2, high byte if even
    const int h = static_cast<int>(threadIdx.x) % 4;
    const bool is_half = args.q.dtype == DType::kF16;

    const bool high = column % 2 == 0;
    const float magic =
        kRoundingMagic + (high ? 128.0f : 0.0f);          // 256*high + low: high rounds to nearest
    const std::uint32_t pick = high ? 0x0051u : 0x0040u;  // byte 1, or byte 0, of two words
    constexpr int kProductsPerGroup = C::kKProducts / C::kGroups;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      // Largest magnitude, on the bit patterns two at a time; the four lanes of a column share a row.
      std::uint32_t largest2 = 0;
#pragma unroll
      for (int i = group * kProductsPerGroup; i < (group + 1) * kProductsPerGroup; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          largest2 = __vmaxu2(largest2, raw[i][j].x & 0x7fff7fffu);
          largest2 = __vmaxu2(largest2, raw[i][j].y & 0x7fff7fffu);
        }
      }
      largest2 = __vmaxu2(largest2, __shfl_xor_sync(~0u, largest2, 1));
      largest2 = __vmaxu2(largest2, __shfl_xor_sync(~0u, largest2, 2));
      const std::uint32_t pattern = max(largest2 & 0xffffu, largest2 >> 16);
      const bool finite = pattern < (is_half ? 0x7c00u : 0x7f80u);
      const float largest = fmaxf(unpack_query2(pattern, is_half).x, 1e-30f);
      // 2^e with largest * 2^e in [2^14, 2^15), halved where that exceeds the largest number of two such bytes.
      float scale =
          __uint_as_float(((127u + 14u + 127u) << 23) - (__float_as_uint(largest) & 0x7f800000u));
      if (largest * scale > kLargestFixed) scale *= 0.5f;
      // sum(q k) with a negative sm_scale is sum(-q k) with a positive one; so `unit` keeps its sign out of comparisons.
      const float to_fixed = copysignf(scale, args.sm_scale_log2);
      int total = 0;
#pragma unroll
      for (int i = group * kProductsPerGroup; i < (group + 1) * kProductsPerGroup; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float2 first = unpack_query2(raw[i][j].x, is_half);
          const float2 second = unpack_query2(raw[i][j].y, is_half);
          const std::uint32_t x0 = __float_as_uint(fmaf(first.x, to_fixed, magic));
          const std::uint32_t x1 = __float_as_uint(fmaf(first.y, to_fixed, magic));
          const std::uint32_t x2 = __float_as_uint(fmaf(second.x, to_fixed, magic));
          const std::uint32_t x3 = __float_as_uint(fmaf(second.y, to_fixed, magic));
          b[n][i][j] = __byte_perm(__byte_perm(x0, x1, pick), __byte_perm(x2, x3, pick), 0x5410);
          // Integers mod 2^32; the constant bits of the magic numbers are taken off below.
          total += static_cast<int>(x0 + x1 + x2 + x3);
        }
      }
      total -= 8 * kProductsPerGroup * static_cast<int>(__float_as_uint(magic));
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      // Lane (g, h) needs row h of the tile, held by the lanes of column 2h. A query that is not finite makes its own row
      // NaN, and no other.
      unit[n][group] = __shfl_sync(~0u, fabsf(args.sm_scale_log2) / (16.0f * scale), 8 * h);
      sum[n][group] = __shfl_sync(~0u, finite ? 16.0f * static_cast<float>(total) : NAN, 8 * h);
    }
  }
};

}  // namespace foscar::cuda
