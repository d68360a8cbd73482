// Octets: 8 consecutive channels of a row in registers, loaded and stored as 16-byte pieces where
// the addresses allow it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "foscar/dtype.h"

namespace foscar::cuda {

// kWide: the octet is 16-byte aligned. Otherwise it is moved element by element, which keeps any
// legal stride working.
template <DType kDType, bool kWide>
struct Octet {
  static constexpr int kElementBytes = dtype_bytes(kDType);
  static constexpr int kPieces = 8 * kElementBytes / 16;
  uint4 pieces[kPieces];

  __device__ void load(const std::uint8_t* source) {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        pieces[i] = __ldcs(reinterpret_cast<const uint4*>(source) + i);
    } else if constexpr (kElementBytes == 4) {
      const auto* x = reinterpret_cast<const std::uint32_t*>(source);
      pieces[0] = {x[0], x[1], x[2], x[3]};
      pieces[1] = {x[4], x[5], x[6], x[7]};
    } else {
      const auto* x = reinterpret_cast<const std::uint16_t*>(source);
      const auto pair = [x](int i) { return x[i] | static_cast<std::uint32_t>(x[i + 1]) << 16; };
      pieces[0] = {pair(0), pair(2), pair(4), pair(6)};
    }
  }

  __device__ void unpack(float (&x)[8]) const {
    if constexpr (kElementBytes == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[4 * i] = __uint_as_float(pieces[i].x);
        x[4 * i + 1] = __uint_as_float(pieces[i].y);
        x[4 * i + 2] = __uint_as_float(pieces[i].z);
        x[4 * i + 3] = __uint_as_float(pieces[i].w);
      }
    } else {
      const std::uint32_t words[4] = {pieces[0].x, pieces[0].y, pieces[0].z, pieces[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kDType == DType::kBF16) {
          x[2 * i] = __uint_as_float(words[i] << 16);
          x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        } else {
          const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
          x[2 * i] = pair.x;
          x[2 * i + 1] = pair.y;
        }
      }
    }
  }

  // Rounds to nearest even.
  __device__ void pack(const float (&x)[8]) {
    if constexpr (kElementBytes == 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        pieces[i] = {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                     __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])};
      }
    } else {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kDType == DType::kBF16) {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
          words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
        } else {
          const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
          words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
        }
      }
      pieces[0] = {words[0], words[1], words[2], words[3]};
    }
  }

  __device__ void store(std::uint8_t* target) const {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) __stcs(reinterpret_cast<uint4*>(target) + i, pieces[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const std::uint32_t words[4] = {pieces[i].x, pieces[i].y, pieces[i].z, pieces[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (kElementBytes == 4) {
            reinterpret_cast<std::uint32_t*>(target)[4 * i + w] = words[w];
          } else {
            reinterpret_cast<std::uint16_t*>(target)[2 * w] = static_cast<std::uint16_t>(words[w]);
            reinterpret_cast<std::uint16_t*>(target)[2 * w + 1] =
                static_cast<std::uint16_t>(words[w] >> 16);
          }
        }
      }
    }
  }
};

}  // namespace foscar::cuda
