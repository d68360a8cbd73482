// The 16-bit conversions over all 65536 patterns, against arithmetic from the definition of the
// types.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "foscar/dtype.h"

namespace foscar {
namespace {

struct Type {
  int exponent_bits, mantissa_bits;
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  }
  // The value of a finite pattern without sign.
  double value(std::uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = bits >> mantissa_bits;
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }
};

class SixteenBit : public testing::TestWithParam<Type> {};

TEST_P(SixteenBit, WidensEveryPatternExactly) {
  const Type type = GetParam();
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto magnitude = static_cast<std::uint16_t>(bits & 0x7fff);
    const float got = type.widen(bits);
    EXPECT_EQ(std::signbit(got), (bits & 0x8000) != 0);
    if (magnitude > type.infinity()) {
      EXPECT_TRUE(std::isnan(got)) << pattern;
    } else if (magnitude == type.infinity()) {
      EXPECT_TRUE(std::isinf(got)) << pattern;
    } else {
      EXPECT_EQ(std::abs(static_cast<double>(got)), type.value(magnitude)) << pattern;
    }
  }
}

TEST_P(SixteenBit, NarrowingUndoesWidening) {
  const Type type = GetParam();
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const std::uint16_t back = type.narrow(type.widen(bits));
    if ((bits & 0x7fff) > type.infinity()) {
      EXPECT_GT(back & 0x7fff, type.infinity()) << "NaN must stay NaN: " << pattern;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

// Between neighbours: below the midpoint down, above it up, at it to the even pattern.
TEST_P(SixteenBit, RoundsToNearestEven) {
  const Type type = GetParam();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t pattern = 0; pattern + 1 < type.infinity(); ++pattern) {
    const auto low = static_cast<std::uint16_t>(pattern),
               high = static_cast<std::uint16_t>(pattern + 1);
    const auto middle =
        static_cast<float>((type.value(low) + type.value(high)) / 2);  // exact in FP32
    const std::uint16_t even = pattern % 2 == 0 ? low : high;
    EXPECT_EQ(type.narrow(middle), even) << pattern;
    EXPECT_EQ(type.narrow(-middle), even | 0x8000) << pattern;
    EXPECT_EQ(type.narrow(std::nextafter(middle, 0.0f)), low) << pattern;
    EXPECT_EQ(type.narrow(std::nextafter(middle, kInfinity)), high) << pattern;
  }
  // Half a step beyond the largest finite number is where infinity begins.
  const auto largest = static_cast<std::uint16_t>(type.infinity() - 1);
  const double step = type.value(largest) - type.value(static_cast<std::uint16_t>(largest - 1));
  const auto limit = static_cast<float>(type.value(largest) + step / 2);
  EXPECT_EQ(type.narrow(limit), type.infinity());
  EXPECT_EQ(type.narrow(std::nextafter(limit, 0.0f)), largest);
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBit,
                         testing::Values(Type{5, 10, half_to_float, float_to_half},
                                         Type{8, 7, bf16_to_float, float_to_bf16}),
                         [](const auto& info) { return info.index == 0 ? "Fp16" : "Bf16"; });

}  // namespace
}  // namespace foscar
