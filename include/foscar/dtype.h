// Element types, and the exact conversions between FP32 and the two 16-bit types as integer arithmetic.
//
//   FP16   s eeeee mmmmmmmmmm      value = (-1)^s * 2^(e-15) * 1.m ; e = 0: m * 2^-24 (subnormal)
//   BF16   s eeeeeeee mmmmmmm      the upper half of an FP32
//
// The conversions round to nearest, ties to even, and are constexpr, so tests can compare every backend's
// hardware conversion with them over all 65536 patterns.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "foscar/hd.h"

namespace foscar {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kU8, kI32, kI64 };

// Size of one element, bytes.
FOSCAR_HD constexpr int dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kU8: return 1;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kU8: return "uint8";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
  }
  return "?";
}

FOSCAR_HD constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

FOSCAR_HD constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  // Adding 0x7fff plus the lowest kept bit rounds ties to even; a carry into the exponent is right.
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

FOSCAR_HD constexpr float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // subnormal: mantissa * 2^-24, exact in FP32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

FOSCAR_HD constexpr std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude >= 0x38800000u) {                       // >= 2^-14: normal
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude <= 0x33000000u) return static_cast<std::uint16_t>(sign);  // <= 2^-25: ties to zero
  const int shift = 126 - static_cast<int>(magnitude >> 23);              // 14 .. 24 bits drop out
  const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t rest = significand & ((1u << shift) - 1u);
  const std::uint32_t half = 1u << (shift - 1);
  return static_cast<std::uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1u)))));
}

// Reads element `index` of an array of `dtype` in {kF32, kF16, kBF16} as FP32 (exact).
FOSCAR_HD constexpr float load_as_float(const void* data, std::int64_t index, DType dtype) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Writes `value` to element `index`, rounded to nearest even.
FOSCAR_HD constexpr void store_from_float(void* data, std::int64_t index, DType dtype,
                                          float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(data)[index] =
        dtype == DType::kF16 ? float_to_half(value) : float_to_bf16(value);
  }
}

}  // namespace foscar
