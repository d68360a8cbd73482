// The algebra of partial softmax results: merging is associative up to rounding, and exact around
// empty states.
#include "core/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace foscar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SoftmaxState, EmptyIsZeroAndMinusInfinity) {
  SoftmaxState<float> a, b;
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(a.lse(), -kInfinity);
  EXPECT_EQ(a.output_factor(), 0.0f);
  const auto w = a.merge(b);
  EXPECT_EQ(a.lse(), -kInfinity);
  EXPECT_EQ(a.output_factor(), 0.0f);
  EXPECT_FALSE(std::isnan(w.self) || std::isnan(w.other));
}

TEST(SoftmaxState, AnEmptySideChangesNoBit) {
  const SoftmaxState<float> full{0.25f, 1.7f};
  SoftmaxState<float> left = full, right;
  const auto keep = left.merge({});
  EXPECT_EQ(left.row_max, full.row_max);
  EXPECT_EQ(left.row_sum, full.row_sum);
  EXPECT_EQ(keep.self, 1.0f);
  EXPECT_EQ(keep.other, 0.0f);
  const auto take = right.merge(full);
  EXPECT_EQ(right.row_max, full.row_max);
  EXPECT_EQ(right.row_sum, full.row_sum);
  EXPECT_EQ(take.self, 0.0f);
  EXPECT_EQ(take.other, 1.0f);
}

TEST(SoftmaxState, MergesLikeOnePass) {
  const double logits[] = {-3.0, 800.0, 799.5, -1e4, 12.0, 800.25};
  double max = -1e300, sum = 0;
  for (double x : logits) max = std::max(max, x);
  for (double x : logits) sum += std::exp(x - max);
  for (int cut = 0; cut <= 6; ++cut) {
    SoftmaxState<double> a, b;
    for (int i = 0; i < 6; ++i) (i < cut ? a : b).merge({logits[i], 1.0});
    a.merge(b);
    EXPECT_NEAR(a.lse(), max + std::log(sum), 8 * 0x1p-52 * max);
  }
}

TEST(SoftmaxState, NanIsNeverLost) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SoftmaxState<float> a{nan, 1.0f}, b{2.0f, 1.0f};
  a.merge({2.0f, 1.0f});
  b.merge({nan, 1.0f});
  EXPECT_TRUE(std::isnan(a.lse()));
  EXPECT_TRUE(std::isnan(b.lse()));
}

}  // namespace
}  // namespace foscar
