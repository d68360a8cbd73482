// The smallest and the largest value of a group, in the type of the rows: 16-bit types stay packed
// in pairs, two elements per instruction, until the end. Every step returns NaN when a side is NaN,
// so a group is finite exactly when its extremes are.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/append/octet.cuh"
#include "foscar/dtype.h"

namespace foscar::cuda {

// The smaller, larger value; NaN if either is NaN.
__device__ inline float min_or_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// One 32-bit word of a row: one FP32 element, or two of 16 bits.
template <DType kDType>
struct ElementWord {
  using Pair = std::conditional_t<kDType == DType::kBF16, __nv_bfloat162, __half2>;

  __device__ static Pair pair(std::uint32_t word) { return *reinterpret_cast<const Pair*>(&word); }
  __device__ static std::uint32_t word(Pair pair) {
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }

  __device__ static std::uint32_t min(std::uint32_t a, std::uint32_t b) {
    if constexpr (kDType == DType::kF32) {
      return __float_as_uint(min_or_nan(__uint_as_float(a), __uint_as_float(b)));
    } else {
      return word(__hmin2_nan(pair(a), pair(b)));
    }
  }
  __device__ static std::uint32_t max(std::uint32_t a, std::uint32_t b) {
    if constexpr (kDType == DType::kF32) {
      return __float_as_uint(max_or_nan(__uint_as_float(a), __uint_as_float(b)));
    } else {
      return word(__hmax2_nan(pair(a), pair(b)));
    }
  }
  // The elements as FP32; twice the same where there is one.
  __device__ static float2 unpack(std::uint32_t word) {
    if constexpr (kDType == DType::kF32) {
      return {__uint_as_float(word), __uint_as_float(word)};
    } else if constexpr (kDType == DType::kBF16) {
      return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
    } else {
      return __half22float2(pair(word));
    }
  }
};

template <DType kDType>
struct Extremes {
  using Word = ElementWord<kDType>;
  std::uint32_t low;   // smallest values of the even and odd elements (16-bit types), of all (FP32)
  std::uint32_t high;  // likewise the largest

  template <bool kWide>
  __device__ static Extremes of(const Octet<kDType, kWide>& octet) {
    Extremes e{octet.pieces[0].x, octet.pieces[0].x};
#pragma unroll
    for (int i = 0; i < Octet<kDType, kWide>::kPieces; ++i) {
      const uint4& p = octet.pieces[i];
      if (i > 0) e.include({p.x, p.x});
      e.include({p.y, p.y});
      e.include({p.z, p.z});
      e.include({p.w, p.w});
    }
    return e;
  }
  __device__ void include(const Extremes& other) {
    low = Word::min(low, other.low);
    high = Word::max(high, other.high);
  }
  __device__ Extremes shuffle_xor(int delta) const {
    return {__shfl_xor_sync(~0u, low, delta), __shfl_xor_sync(~0u, high, delta)};
  }
  __device__ float min() const {
    const float2 parts = Word::unpack(low);
    return min_or_nan(parts.x, parts.y);
  }
  __device__ float max() const {
    const float2 parts = Word::unpack(high);
    return max_or_nan(parts.x, parts.y);
  }
};

}  // namespace foscar::cuda
