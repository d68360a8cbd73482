// The lane arithmetic of the CUDA append kernel, on the host: the same codes as affine.h, the same
// bytes as packing.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backends/cuda/append/encode.h"
#include "backends/cuda/append/row_lanes.h"
#include "foscar/format/affine.h"

namespace foscar::cuda {
namespace {

// The code that a lane would give to x.
int lane_code(const GroupEncoder& group, float x, int bits, bool clamp) {
  const float values[4] = {x, x, x, x};
  if (!group.is_ordinary())
    return static_cast<int>(encode4_by_division(x, x, x, x, group.params, bits) & 0xffu);
  const std::uint32_t codes =
      clamp ? group.encode4<true>(values, bits) : group.encode4<false>(values, bits);
  return static_cast<int>(codes >> 24);
}

// Quotients next to every decision of the quantizer: for a scale s and a code boundary j, the
// floats around j - 1/2 times s, where the quotient's rounding decides. A stride of 1 over all 2^23
// significands passes too; the test takes a prime stride, and the significands at both ends, where
// quotients come nearest to a midpoint.
TEST(CudaQuantizer, EveryBoundaryIsThatOfTheDivision) {
  std::vector<std::uint32_t> significands;
  for (std::uint32_t s = 0; s < 1u << 23; s += 101) significands.push_back(s);
  for (std::uint32_t s = 0; s < 512; ++s) {
    significands.push_back(s);
    significands.push_back((1u << 23) - 1 - s);
  }
  for (const int exponent : {-89, -12, 0, 60}) {
    for (const std::uint32_t significand : significands) {
      const float scale =
          std::bit_cast<float>(significand | static_cast<std::uint32_t>(exponent + 127) << 23);
      const GroupEncoder group = GroupEncoder::of({scale, 0.0f});
      ASSERT_TRUE(group.is_ordinary());
      for (int j = 1; j <= 15; ++j) {
        float x = static_cast<float>((j - 0.5) * static_cast<double>(scale));
        for (int below = 0; below < 3; ++below) x = std::nextafter(x, 0.0f);
        for (int at = 0; at < 6; ++at, x = std::nextafter(x, INFINITY)) {
          ASSERT_EQ(lane_code(group, x, 4, false), encode_affine(x, group.params, 4))
              << scale << " " << x;
        }
      }
    }
  }
}

TEST(CudaQuantizer, RandomGroupsOfEveryRange) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 60000; ++round) {
    const DType dtype =
        std::array{DType::kF32, DType::kF16, DType::kBF16}[static_cast<std::size_t>(round % 3)];
    const int bits = round / 3 % 2 == 0 ? 2 : 4;
    // Spreads and means from subnormal to the largest finite values.
    const float spread = std::ldexp(1.0f + uniform(random), static_cast<int>(random() % 270) - 145);
    const float mean =
        round % 5 == 0 ? std::ldexp(normal(random), static_cast<int>(random() % 250) - 130) : 0.0f;
    std::vector<float> x(32);
    for (float& value : x) {
      value = std::clamp(mean + spread * normal(random), -0x1.fffffep127f, 0x1.fffffep127f);
      if (round % 7 == 0) value = bf16_to_float(float_to_bf16(value));
      if (round % 11 == 0) value = std::round(value);
      if (!std::isfinite(value)) value = 0.0f;
    }
    const auto [min, max] = std::minmax_element(x.begin(), x.end());
    const GroupEncoder group = GroupEncoder::of(fit_affine(*min, *max, true, bits, dtype));
    for (const float value : x) {
      ASSERT_EQ(lane_code(group, value, bits, dtype != DType::kF32),
                encode_affine(value, group.params, bits))
          << value << " of " << *min << " .. " << *max << ", scale " << group.params.scale
          << ", offset " << group.params.offset;
    }
  }
}

TEST(CudaQuantizer, BrokenGroupsHaveCodeZero) {
  const GroupEncoder group = GroupEncoder::of(fit_affine(0.0f, 0.0f, false, 2, DType::kF32));
  EXPECT_FALSE(group.is_ordinary());
  for (const float x : {1.0f, INFINITY, -INFINITY, NAN})
    EXPECT_EQ(lane_code(group, x, 2, false), 0);
}

// All lanes of a row, their octets and the exchange between the lanes that share bytes.
TEST(CudaQuantizer, LanesWriteTheBytesOfThePacking) {
  std::mt19937 random(4);
  for (const int head_dim : {64, 128, 256}) {
    for (const int bits : {2, 4}) {
      std::vector<int> codes(static_cast<std::size_t>(head_dim));
      for (int& code : codes) code = static_cast<int>(random()) & max_code(bits);
      std::vector<std::uint8_t> want(static_cast<std::size_t>(row_bytes(head_dim, bits)), 0),
          got = want;
      for (int c = 0; c < head_dim; ++c) {
        const CodePosition at = code_position(c, head_dim, bits);
        want[static_cast<std::size_t>(at.byte)] |=
            static_cast<std::uint8_t>(codes[static_cast<std::size_t>(c)] << at.shift);
      }
      for (int lane = 0; lane < lanes_per_row(head_dim); ++lane) {
        const int shift = low_octet_shift(lane, head_dim, bits);
        for (int i = 0; i < kOctet; ++i) {
          const int low = codes[static_cast<std::size_t>(first_channel(lane, 0, head_dim) + i)];
          const int high = codes[static_cast<std::size_t>(first_channel(lane, 1, head_dim) + i)];
          got[static_cast<std::size_t>(first_byte(lane, head_dim, bits) + i)] |=
              static_cast<std::uint8_t>((low | high << kHighOctetShift) << shift);
        }
      }
      EXPECT_EQ(got, want) << head_dim << " channels, " << bits << " bits";
    }
  }
}

}  // namespace
}  // namespace foscar::cuda
