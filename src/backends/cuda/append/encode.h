// The quantizer of affine.h as a lane of the append kernel runs it: the same codes without an IEEE
// division per value.
//
//     x' = x - offset,  q0 = x' r,  e = x' - q0 scale,  q = q0 + e r        with r = RN(1 / scale)
//     code = clamp(floor(q + 1/2), 0, 2^bits - 1)
//
// Why the codes are those of encode_affine(). Its quotient is RN(x' / scale), and its code reaches
// j exactly when that quotient reaches a float q_j: j - 1/2, and 1/2 - 2^-25 for j = 1, where the
// addition of 1/2 rounds up. So all that counts is on which side of the midpoint m_j below q_j the
// real quotient Q lies. The correction leaves q = RN(Q (1 + d)) with |d| < 2^-45, so only quotients
// within 2^-45 of a midpoint are in question. For those there is no proof but the complete list:
// all 2^23 significands of the scale, with the three floats on either side of each of the 15
// boundaries, give the code of the division; the unit test walks a sample of them. Scaling x' and
// scale by a power of two changes nothing as long as no product leaves the normal range: that is
// what is_ordinary() guards; other groups take the division.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "foscar/format/affine.h"
#include "foscar/hd.h"

namespace foscar::cuda {

inline constexpr float kSmallestOrdinaryScale = 0x1p-90f;
inline constexpr float kLargestOrdinaryScale = 0x1p90f;

// A number whose lowest byte is floor(position), 0 <= position < 256; the other bytes are a
// constant.
FOSCAR_HD inline std::uint32_t floor_to_low_byte(float position) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(__fadd_rd(position, 0x1p23f));  // full rate, unlike a conversion
#else
  return 0x4b000000u | static_cast<std::uint32_t>(position);
#endif
}

// The lowest bytes of four numbers, `a`'s lowest.
FOSCAR_HD inline std::uint32_t gather_low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                std::uint32_t d) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | (d & 0xffu) << 24;
#endif
}

// Codes of the rare groups outside the ordinary range, one per byte. Out of line: four divisions
// are a lot of code.
#if defined(__CUDACC__)
__noinline__
#endif
    FOSCAR_HD inline std::uint32_t
    encode4_by_division(float x0, float x1, float x2, float x3, AffineParams params, int bits) {
  const auto code = [&](float x) {
    return static_cast<std::uint32_t>(encode_affine(x, params, bits));
  };
  return code(x0) | code(x1) << 8 | code(x2) << 16 | code(x3) << 24;
}

// One group, ready to encode its values.
struct GroupEncoder {
  AffineParams params;
  float reciprocal;  // RN(1 / scale), or 0 for a group that is not ordinary

  FOSCAR_HD static GroupEncoder of(AffineParams params) {
    // A group with a NaN or an infinity, whose offset is NaN, is not ordinary either.
    const bool ordinary = params.scale >= kSmallestOrdinaryScale &&
                          params.scale <= kLargestOrdinaryScale && params.offset == params.offset;
    return {params, ordinary ? 1.0f / params.scale : 0.0f};
  }
  // Whether encode4() is exact.
  FOSCAR_HD bool is_ordinary() const { return reciprocal != 0.0f; }

  // encode_affine(x, params, bits) in the lowest byte; the rest is a constant. Without rounded
  // parameters x' lies in 0 .. max - min, so that only rounded ones (kClamp) can lead outside the
  // codes.
  template <bool kClamp>
  FOSCAR_HD std::uint32_t encode(float x, int bits) const {
    const float shifted = x - params.offset;
    const float guess = shifted * reciprocal;
    const float error = std::fma(-guess, params.scale, shifted);
    float position = std::fma(error, reciprocal, guess) + 0.5f;
    if (kClamp) position = std::fmin(std::fmax(position, 0.0f), static_cast<float>(max_code(bits)));
    return floor_to_low_byte(position);
  }

  // The codes of four consecutive channels, one per byte.
  template <bool kClamp>
  FOSCAR_HD std::uint32_t encode4(const float* x, int bits) const {
    return gather_low_bytes(encode<kClamp>(x[0], bits), encode<kClamp>(x[1], bits),
                            encode<kClamp>(x[2], bits), encode<kClamp>(x[3], bits));
  }
};

}  // namespace foscar::cuda
