// The quantizer: from the smallest and largest value of a group to (scale, offset), and from a value to its code.
// Every backend must produce the same bytes, so the arithmetic is fixed here, operation by operation, in FP32 with
// IEEE rounding; none of it is a multiply followed by an add, so no compiler can contract it differently.
//
//   offset = round_to_param(min)                      the group's smallest value, not an integer zero point
//   scale  = round_to_param((max - min) / (2^bits-1))  finite and > 0
//   code   = clamp(floor((x - offset) / scale + 0.5), 0, 2^bits - 1)     with the *stored* scale and offset
//
// Special groups:
//   flat (max == min)       scale 1, code 0: the offset carries the value, exact up to the parameter type
//   any NaN or infinity     scale 1, offset NaN, code 0: the token's group reads as NaN, its neighbours are untouched
//   range above FP32's      scale = max/levels - min/levels, so it stays finite
//   beyond FP16's range     scale and offset saturate at the largest finite FP16/BF16
//   scale rounds to zero    the smallest positive number of the parameter type
#pragma once

#include "foscar/dtype.h"
#include "foscar/format/packing.h"
#include "foscar/hd.h"

namespace foscar {

struct AffineParams {
  float scale;
  float offset;
};

// Rounds to the parameter type and saturates at its largest finite value. Zeros lose their sign, so that a
// group's bytes do not depend on the order in which its minimum was searched.
FOSCAR_HD constexpr float round_to_param(float value, DType param_dtype) {
  if (param_dtype == DType::kF32) return value + 0.0f;
  const bool is_half = param_dtype == DType::kF16;
  const float largest = is_half ? 65504.0f : 0x1.fep127f;
  const float clamped = value > largest ? largest : (value < -largest ? -largest : value);
  return (is_half ? half_to_float(float_to_half(clamped)) : bf16_to_float(float_to_bf16(clamped))) +
         0.0f;
}

FOSCAR_HD constexpr float smallest_positive(DType param_dtype) {
  return param_dtype == DType::kF32 ? 0x1p-149f
                                    : (param_dtype == DType::kF16 ? 0x1p-24f : 0x1p-133f);
}

// `finite` is false when the group holds a NaN or an infinity; min and max are then ignored.
FOSCAR_HD constexpr AffineParams fit_affine(float min, float max, bool finite, int bits,
                                            DType param_dtype) {
  if (!finite) return {1.0f, std::bit_cast<float>(0x7fc00000u)};
  if (min == max) return {1.0f, round_to_param(min, param_dtype)};
  const float levels = static_cast<float>(max_code(bits));
  const float range = max - min;
  const bool overflows = range > 0x1.fffffep127f;
  float scale =
      round_to_param(overflows ? max / levels - min / levels : range / levels, param_dtype);
  if (scale < smallest_positive(param_dtype)) scale = smallest_positive(param_dtype);
  return {scale, round_to_param(min, param_dtype)};
}

FOSCAR_HD constexpr int encode_affine(float x, AffineParams params, int bits) {
  const float levels = static_cast<float>(max_code(bits));
  const float position = (x - params.offset) / params.scale + 0.5f;
  if (!(position > 0.0f)) return 0;  // also NaN
  return position >= levels ? max_code(bits) : static_cast<int>(position);
}

}  // namespace foscar
