// The folding algebra against attention over dequantized values. All numbers are small multiples of powers of two, so both
// sides are exact in double precision and must be equal, not close.
#include "core/fold.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "foscar/format/packing.h"

namespace foscar {
namespace {

constexpr int kTokens = 8;
constexpr int kChannels = 16;

struct Numbers {
  std::array<std::array<int, kChannels>, kTokens> codes;
  std::array<double, kTokens> p, token_scale, token_offset;
  std::array<double, kChannels> q, channel_scale, channel_offset;
};

Numbers draw(unsigned seed) {
  std::mt19937 rng(seed);
  const auto eighths = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng) / 8.0;
  };
  Numbers n;
  for (auto& row : n.codes) {
    for (int& code : row) code = std::uniform_int_distribution<int>(0, 15)(rng);
  }
  for (int t = 0; t < kTokens; ++t) {
    n.p[t] = eighths(0, 40), n.token_scale[t] = eighths(1, 30),
    n.token_offset[t] = eighths(-90, 90);
  }
  for (int c = 0; c < kChannels; ++c) {
    n.q[c] = eighths(-40, 40), n.channel_scale[c] = eighths(1, 30);
    n.channel_offset[c] = eighths(-90, 90);
  }
  return n;
}

TEST(Fold, EverySiteEqualsDequantizedValues) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Numbers n = draw(seed);
    for (int t = 0; t < kTokens; ++t) {
      double token_wise = 0, channel_wise = 0, dot = 0, q_sum = 0, folded = 0;
      for (int c = 0; c < kChannels; ++c) {
        const int code = n.codes[t][c];
        token_wise += n.q[c] * (n.token_scale[t] * code + n.token_offset[t]);
        channel_wise += n.q[c] * (n.channel_scale[c] * code + n.channel_offset[c]);
        dot += n.q[c] * code, q_sum += n.q[c];
        folded += query_fold(n.q[c], n.channel_scale[c]) * code + n.q[c] * n.channel_offset[c];
      }
      EXPECT_EQ(accumulator_fold(dot, q_sum, n.token_scale[t], n.token_offset[t]), token_wise);
      EXPECT_EQ(folded, channel_wise);
    }
    for (int c = 0; c < kChannels; ++c) {
      double token_wise = 0, channel_wise = 0, dot = 0, p_sum = 0, folded = 0;
      for (int t = 0; t < kTokens; ++t) {
        const int code = n.codes[t][c];
        token_wise += n.p[t] * (n.token_scale[t] * code + n.token_offset[t]);
        channel_wise += n.p[t] * (n.channel_scale[c] * code + n.channel_offset[c]);
        folded += prob_fold(n.p[t], n.token_scale[t]) * code + n.p[t] * n.token_offset[t];
        dot += n.p[t] * code, p_sum += n.p[t];
      }
      EXPECT_EQ(folded, token_wise);
      EXPECT_EQ(output_fold(dot, p_sum, n.channel_scale[c], n.channel_offset[c]), channel_wise);
    }
  }
}

TEST(Fold, SitesByFormat) {
  EXPECT_EQ(fold_site(KvSide::kK, QuantAxis::kToken), FoldSite::kAccumulator);
  EXPECT_EQ(fold_site(KvSide::kK, QuantAxis::kChannel), FoldSite::kQuery);
  EXPECT_EQ(fold_site(KvSide::kV, QuantAxis::kToken), FoldSite::kProb);
  EXPECT_EQ(fold_site(KvSide::kV, QuantAxis::kChannel), FoldSite::kOutput);
}

// Every 16-bit word, at both halves: a masked byte is its code times the position's weight.
TEST(Fold, MaskedBytesAreWeightedCodes) {
  for (const int bits : {2, 4}) {
    for (std::uint32_t half = 0; half < 0x10000u; ++half) {
      const std::uint32_t word = half << 16 | half;
      for (int p = 0; p < codes_per_byte(bits); ++p) {
        const std::uint32_t masked = word & position_mask(bits, p);
        for (int byte = 0; byte < 4; ++byte) {
          const auto raw = static_cast<std::uint8_t>(word >> (8 * byte));
          ASSERT_EQ(static_cast<int>(masked >> (8 * byte) & 0xffu),
                    extract_code(raw, p * bits, bits) * position_weight(bits, p));
        }
      }
    }
  }
}

}  // namespace
}  // namespace foscar
