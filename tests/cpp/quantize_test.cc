// The quantizer's arithmetic, independent of any backend: exactness of flat groups, half-step
// error, finite parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "foscar/format/affine.h"

namespace foscar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double decoded(AffineParams params, int code) {
  return static_cast<double>(params.scale) * code + params.offset;
}

// Unit roundoff of a parameter type.
double roundoff(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : (dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
}

class Quantizer : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int bits() const { return std::get<0>(GetParam()); }
  DType params() const { return std::get<1>(GetParam()); }
  AffineParams fit(float min, float max) const {
    return fit_affine(min, max, true, bits(), params());
  }
};

TEST_P(Quantizer, FlatGroupsAreExact) {
  // All representable in FP16; in BF16 those with at most 8 significant bits.
  for (float value : {0.0f, 1.0f, -3.5f, 100.0f, 65504.0f, -0.25f, 0x1p-24f}) {
    const AffineParams p = fit(value, value);
    EXPECT_EQ(p.scale, 1.0f);
    EXPECT_EQ(encode_affine(value, p, bits()), 0);
    EXPECT_LE(std::abs(p.offset - value), roundoff(params()) * std::abs(value));
    if (params() != DType::kBF16) {
      EXPECT_EQ(p.offset, value);
    }
  }
  EXPECT_FALSE(std::signbit(fit(-0.0f, 0.0f).offset));
}

TEST_P(Quantizer, ErrorIsHalfAStepPlusParameterRounding) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const int levels = max_code(bits());
  for (float magnitude : {1e-4f, 1.0f, 300.0f, 1.5e4f}) {
    for (float center : {0.0f, 0.5f, -3.0f}) {
      std::vector<float> x(128);
      for (float& value : x) value = magnitude * (center + uniform(rng));
      const auto [min, max] = std::minmax_element(x.begin(), x.end());
      const AffineParams p = fit(*min, *max);
      // Rounded parameters move the whole grid: the offset once, the scale once per level. FP16 has
      // an absolute step of 2^-24 near zero. The FP32 arithmetic of the encoder adds 4 roundings of
      // the position.
      const double floor = params() == DType::kF16 ? 0x1p-25 * (1 + levels) : 0;
      const double bound = p.scale / 2 + roundoff(params()) * (std::abs(*min) + levels * p.scale) +
                           floor + 4 * 0x1p-24 * (levels * p.scale + std::abs(*min));
      for (float value : x) {
        const int code = encode_affine(value, p, bits());
        ASSERT_GE(code, 0);
        ASSERT_LE(code, levels);
        EXPECT_LE(std::abs(decoded(p, code) - value), bound) << value;
      }
    }
  }
}

TEST_P(Quantizer, ExtremesGetTheOuterCodes) {
  const AffineParams p = fit(-1.0f, 2.0f);
  EXPECT_EQ(encode_affine(-1.0f, p, bits()), 0);
  EXPECT_EQ(encode_affine(2.0f, p, bits()), max_code(bits()));
  EXPECT_EQ(encode_affine(-1e30f, p, bits()), 0);
  EXPECT_EQ(encode_affine(1e30f, p, bits()), max_code(bits()));
  EXPECT_EQ(encode_affine(kInfinity, p, bits()), max_code(bits()));
  EXPECT_EQ(encode_affine(std::numeric_limits<float>::quiet_NaN(), p, bits()), 0);
}

TEST_P(Quantizer, ParametersAreAlwaysUsable) {
  const float values[] = {0.0f, 0x1p-149f, 1e-45f,   1e-38f, 1e-30f,  1e-7f,          1e-3f,
                          1.0f, 65504.0f,  65536.0f, 1e8f,   3.0e38f, 0x1.fffffep127f};
  for (float a : values) {
    for (float b : values) {
      for (float min : {-a, a}) {
        const float max = b;
        if (min > max) continue;
        const AffineParams p = fit(min, max);
        EXPECT_TRUE(std::isfinite(p.scale) && p.scale > 0) << min << " .. " << max;
        EXPECT_TRUE(std::isfinite(p.offset)) << min << " .. " << max;
        EXPECT_EQ(round_to_param(p.scale, params()), p.scale)
            << "the scale must be what the page can hold";
        EXPECT_EQ(round_to_param(p.offset, params()), p.offset);
        for (float x : {min, max, min / 2 + max / 2}) {
          const int code = encode_affine(x, p, bits());
          EXPECT_TRUE(code >= 0 && code <= max_code(bits()));
        }
      }
    }
  }
}

TEST_P(Quantizer, NonFiniteGroupsReadAsNaN) {
  const AffineParams p = fit_affine(-1.0f, 1.0f, false, bits(), params());
  EXPECT_EQ(p.scale, 1.0f);
  EXPECT_TRUE(std::isnan(p.offset));
}

// Rounding is monotone: a larger value never gets a smaller code.
TEST_P(Quantizer, CodesAreMonotone) {
  const AffineParams p = fit(-0.7f, 1.9f);
  int last = 0;
  for (float x = -1.0f; x < 2.2f; x += 1e-3f) {
    const int code = encode_affine(x, p, bits());
    EXPECT_GE(code, last);
    last = code;
  }
  EXPECT_EQ(last, max_code(bits()));
}

INSTANTIATE_TEST_SUITE_P(All, Quantizer,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& info) {
                           return "Int" + std::to_string(std::get<0>(info.param)) + "_" +
                                  std::string(dtype_name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace foscar
