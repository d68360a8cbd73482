// The quantizer's difficult inputs through every backend: flat groups, tiny ranges, NaN and
// infinities, strided input, ragged batches, rejected drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

AppendInput input_of(const HostCache& cache, const RowFn& k, const RowFn& v) {
  return {.k = all_rows(cache.g, k), .v = all_rows(cache.g, v), .slots = all_slots(cache)};
}

TEST_P(Cases, H20_FlatGroupsAreExact) {
  for (const char* name : {"k2v2-token-g32-f32", "k4v4-token-g32-f32", "k2v2-token-g32-f16"}) {
    const Geometry g{
        .format = KvFormat::parse(name), .num_qo_heads = 1, .num_kv_heads = 1, .kv_lens = {1}};
    const auto rows = [](int, int, int, std::span<float> row) {
      const float values[] = {0.0f, 100.0f, -3.5f, 65504.0f};
      for (std::size_t c = 0; c < 128; ++c) row[c] = values[c / 32];
    };
    HostCache cache = empty_cache(g);
    cache.pool = run_append(backend(), cache, input_of(cache, constant_rows(0), rows));
    const Result result = run_decode(backend(), cache, gaussian_q(g));
    std::vector<float> want(128);
    rows(0, 0, 0, want);
    for (std::size_t c = 0; c < 128; ++c) {
      const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
      EXPECT_EQ(oracle_value(cache, true, 0, 0, 0, static_cast<int>(c)), want[c]);
      EXPECT_NEAR(result.o[c], want[c], tol.o * std::abs(want[c])) << c;
    }
  }
}

TEST_P(Cases, H20_OneTinyValueAmongZeros) {
  for (int bits : {2, 4}) {
    const Geometry g{
        .format = {{bits, QuantAxis::kToken, 32}, {bits, QuantAxis::kToken, 32}, DType::kF32},
        .num_qo_heads = 1,
        .num_kv_heads = 1,
        .kv_lens = {1}};
    const auto rows = [](int, int, int, std::span<float> row) {
      std::fill(row.begin(), row.end(), 0.0f);
      row[40] = 1e-30f;
    };
    HostCache cache = empty_cache(g);
    cache.pool = run_append(backend(), cache, input_of(cache, rows, rows));
    for (int c = 0; c < 128; ++c) {
      EXPECT_NEAR(oracle_value(cache, true, 0, 0, 0, c), c == 40 ? 1e-30 : 0.0,
                  1e-30 * 4 * 0x1p-24);
    }
    const Result result = run_decode(backend(), cache, gaussian_q(g));
    for (float x : result.o) EXPECT_TRUE(std::isfinite(x) && std::abs(x) <= 2e-30f);
  }
}

// The right bounds come from the group's own range, never from zeros padded to it.
TEST_P(Cases, H21_RangeIsOfTheGroupAlone) {
  for (int bits : {2, 4}) {
    for (int head_dim : {64, 128, 256}) {
      const Geometry g{.format = {{bits, QuantAxis::kToken, head_dim},
                                  {bits, QuantAxis::kToken, head_dim},
                                  DType::kF32},
                       .head_dim = head_dim,
                       .num_qo_heads = 2,
                       .num_kv_heads = 2,
                       .kv_lens = {9}};
      const auto rows = [gauss = gaussian_rows(0)](int b, int head, int t, std::span<float> row) {
        gauss(b, head, t, row);
        for (float& x : row) x = 2.5f + std::clamp(x / 4, -0.5f, 0.5f);
      };
      HostCache cache = empty_cache(g);
      const AppendInput input = input_of(cache, rows, rows);
      cache.pool = run_append(backend(), cache, input);
      const DequantizedRows got = run_dequantize(backend(), cache);
      const double half_step = 0.5 / max_code(bits);  // of a range of 1
      for (std::size_t i = 0; i < input.k.size(); ++i) {
        ASSERT_LE(std::abs(got.k[i] - input.k[i]), half_step + 8 * 0x1p-23);
        ASSERT_LE(std::abs(got.v[i] - input.v[i]), half_step + 8 * 0x1p-23);
      }
    }
  }
}

TEST_P(Cases, H22_NonFiniteInputStaysInItsTokenGroup) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g32-f32"), .kv_lens = {9, 9}};
  const HostCache cache = empty_cache(g);
  const std::vector<std::uint8_t> clean =
      run_append(backend(), cache, input_of(cache, gaussian_rows(1), gaussian_rows(2)));
  for (float poison : {kNaN, kInfinity, -kInfinity}) {
    const auto rows = [poison](int b, int head, int t, std::span<float> row) {
      gaussian_rows(1)(b, head, t, row);
      if (b == 0 && t == 3) row[7] = poison;
    };
    HostCache got = cache;
    got.pool = run_append(backend(), cache, input_of(cache, rows, gaussian_rows(2)));
    HostCache want = cache;
    want.pool = clean;
    for (int b = 0; b < 2; ++b) {
      for (int t = 0; t < 9; ++t) {
        for (int c = 0; c < 128; ++c) {
          const double value = oracle_value(got, false, b, 1, t, c);
          if (b == 0 && t == 3 && c < 32) {
            EXPECT_TRUE(std::isnan(value));
            EXPECT_EQ(oracle_code(got, false, b, 1, t, c), 0);
          } else {
            EXPECT_EQ(value, oracle_value(want, false, b, 1, t, c));
          }
        }
      }
    }
    // Request 1 decodes to the same bits as without the accident; request 0 shows it.
    const Result broken = run_decode(backend(), got, gaussian_q(g)),
                 right = run_decode(backend(), want, gaussian_q(g));
    const std::size_t half = right.o.size() / 2;
    EXPECT_TRUE(std::equal(right.o.begin() + static_cast<std::ptrdiff_t>(half), right.o.end(),
                           broken.o.begin() + static_cast<std::ptrdiff_t>(half)));
    EXPECT_TRUE(std::isnan(broken.o[0])) << "a NaN key must not become a plausible number";
  }
}

TEST_P(Cases, H23_TinyRangesStayFinite) {
  for (const char* params : {"f32", "f16", "bf16"}) {
    for (const char* bits : {"k2v2", "k4v4"}) {
      const Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g32-" + params),
                       .num_qo_heads = 2,
                       .num_kv_heads = 1,
                       .kv_lens = {8}};
      // Ranges 0, 1e-3, 1e-7 and 1e-38 in the four groups, around 0 and around 1.
      for (float center : {0.0f, 1.0f}) {
        const auto rows = [center](int, int, int t, std::span<float> row) {
          const float ranges[] = {0.0f, 1e-3f, 1e-7f, 1e-38f};
          for (std::size_t c = 0; c < 128; ++c) {
            row[c] = center + ranges[c / 32] *
                                  static_cast<float>((c + static_cast<std::size_t>(t)) % 16) /
                                  15.0f;
          }
        };
        HostCache cache = empty_cache(g);
        const AppendInput input = input_of(cache, rows, rows);
        cache.pool = run_append(backend(), cache, input);
        const double roundoff = g.format.param_dtype == DType::kF32   ? 0x1p-24
                                : g.format.param_dtype == DType::kF16 ? 0x1p-11
                                                                      : 0x1p-8;
        const double smallest = smallest_positive(g.format.param_dtype);
        for (int t = 0; t < 8; ++t) {
          for (int c = 0; c < 128; ++c) {
            const double value = oracle_value(cache, true, 0, 0, t, c);
            const double want = input.v[static_cast<std::size_t>(t * 128 + c)];
            const double range = c < 32 ? 0 : (c < 64 ? 1e-3 : (c < 96 ? 1e-7 : 1e-38));
            // One step, or the smallest step that the parameter type has, plus the offset's
            // rounding.
            const double step = std::max(range / max_code(g.format.v.bits), 16 * smallest);
            ASSERT_LE(std::abs(value - want), step + 2 * roundoff * std::abs(want)) << c;
          }
        }
        expect_right(backend(), cache, gaussian_q(g));
      }
    }
  }
}

TEST_P(Cases, H24_ColumnsBesideTheInputHaveNoEffect) {
  const Geometry g{
      .format = KvFormat::parse("k4v4-token-g64-f32"), .head_dim = 256, .kv_lens = {20}};
  const HostCache cache = empty_cache(g);
  AppendInput input = input_of(cache, gaussian_rows(1), gaussian_rows(2));
  const std::vector<std::uint8_t> contiguous = run_append(backend(), cache, input);
  for (int padding : {1, 16, 512}) {
    input.row_padding = padding;
    EXPECT_EQ(run_append(backend(), cache, input), contiguous);
  }
}

TEST_P(Cases, H73_RaggedAppendsSwapBitwise) {
  const auto rows = [](int b, int, int t, std::span<float> row) {
    std::fill(row.begin(), row.end(), static_cast<float>(100 * b + t));
  };
  const Geometry g{.format = KvFormat::parse("k2v2-token-g128-f32"), .kv_lens = {3, 1, 7}};
  const HostCache cache = empty_cache(g);
  AppendInput input = input_of(cache, constant_rows(0), rows);
  HostCache filled = cache;
  filled.pool = run_append(backend(), cache, input);
  expect_right(backend(), filled, gaussian_q(g));
  // The same tokens in the opposite order.
  const std::size_t row = static_cast<std::size_t>(g.num_kv_heads * g.head_dim),
                    tokens = input.slots.size();
  AppendInput reversed;
  for (std::size_t i = tokens; i-- > 0;) {
    reversed.slots.push_back(input.slots[i]);
    reversed.k.insert(reversed.k.end(), input.k.begin() + static_cast<std::ptrdiff_t>(i * row),
                      input.k.begin() + static_cast<std::ptrdiff_t>((i + 1) * row));
    reversed.v.insert(reversed.v.end(), input.v.begin() + static_cast<std::ptrdiff_t>(i * row),
                      input.v.begin() + static_cast<std::ptrdiff_t>((i + 1) * row));
  }
  EXPECT_EQ(run_append(backend(), cache, reversed), filled.pool);
}

TEST_P(Cases, H74_RequestsDoNotShareScales) {
  for (const char* name : {"k4v4-token-g32-f32", "k4v4-token-g128-f32"}) {
    Geometry g{.format = KvFormat::parse(name), .kv_lens = {10, 10}};
    const auto rows = [](int b, int head, int t, std::span<float> row) {
      gaussian_rows(3)(b, head, t, row);
      for (float& x : row) x = b == 0 ? std::abs(x) / 8 : 1e4f * x;
    };
    const HostCache cache = empty_cache(g);
    const AppendInput both = input_of(cache, rows, rows);
    HostCache together = cache, alone = cache;
    together.pool = run_append(backend(), cache, both);
    AppendInput first = both;
    first.slots.resize(10);
    first.k.resize(10 * 256);
    first.v.resize(10 * 256);
    alone.pool = run_append(backend(), cache, first);
    for (int t = 0; t < 10; ++t) {
      for (int c = 0; c < 128; ++c) {
        EXPECT_EQ(oracle_value(together, false, 0, 0, t, c),
                  oracle_value(alone, false, 0, 0, t, c));
        EXPECT_EQ(oracle_value(together, true, 0, 1, t, c), oracle_value(alone, true, 0, 1, t, c));
      }
    }
  }
}

// Drafts that are rejected and overwritten leave no trace, across a page boundary.
TEST_P(Cases, H59_RejectedDraftsLeaveNoTrace) {
  const Geometry g{.format = KvFormat::parse("k2v2-token-g32-f32"), .kv_lens = {19}};
  const HostCache cache = empty_cache(g);
  const AppendInput final_input = input_of(cache, gaussian_rows(1), gaussian_rows(2));
  HostCache clean = cache, drafted = cache;
  clean.pool = run_append(backend(), cache, final_input);
  const auto drafts = [](int b, int head, int t, std::span<float> row) {
    gaussian_rows(2)(b, head, t, row);
    if (t >= 14) std::fill(row.begin(), row.end(), 1e6f);
  };
  drafted.pool = run_append(backend(), cache, input_of(cache, gaussian_rows(1), drafts));
  drafted.pool = run_append(backend(), drafted, final_input);
  EXPECT_EQ(drafted.pool, clean.pool);
}

}  // namespace
}  // namespace foscar::test
