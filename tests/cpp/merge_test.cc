// merge_states: what the merge of partial results must give, exactly where it can be exact.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Merge {
  int num_states, num_rows, num_heads, head_dim;
  std::vector<float> v, lse;
};

Result run_merge(const TestBackend& backend, const Merge& m, DType dtype = DType::kF32) {
  Place& place = *backend.place;
  const auto rows = static_cast<std::size_t>(m.num_rows) * static_cast<std::size_t>(m.num_heads);
  const auto upload = [&](const auto& values) {
    return Buffer(place, values.data(), values.size() * sizeof(values[0]));
  };
  const Buffer v = upload(to_bytes(m.v, dtype)), lse = upload(m.lse);
  const Buffer o = upload(
      to_bytes(std::vector<float>(rows * static_cast<std::size_t>(m.head_dim), 7.0f), dtype));
  const Buffer lse_out = upload(std::vector<float>(rows, 7.0f));
  const Device device = place.device();
  merge_states(
      Tensor::contiguous(v.data(), dtype, {m.num_states, m.num_rows, m.num_heads, m.head_dim},
                         device),
      Tensor::contiguous(lse.data(), DType::kF32, {m.num_states, m.num_rows, m.num_heads}, device),
      Tensor::contiguous(o.data(), dtype, {m.num_rows, m.num_heads, m.head_dim}, device),
      Tensor::contiguous(lse_out.data(), DType::kF32, {m.num_rows, m.num_heads}, device),
      {.backend = backend.name});
  return {to_floats(o.download(), dtype), to_floats(lse_out.download(), DType::kF32)};
}

// One row, one head: states with constant v.
Result merge_constants(const TestBackend& backend,
                       const std::vector<std::pair<float, float>>& states) {
  Merge m{static_cast<int>(states.size()), 1, 1, 64, {}, {}};
  for (const auto& [v, lse] : states) {
    m.v.insert(m.v.end(), 64, v);
    m.lse.push_back(lse);
  }
  return run_merge(backend, m);
}

TEST_P(Cases, H03_EmptyStates) {
  // Every non-empty subset pattern of up to three states; an empty one may hold anything in v.
  for (int states : {1, 2, 3}) {
    for (int full = 0; full < 1 << states; ++full) {
      std::vector<std::pair<float, float>> list;
      int count = 0;
      for (int s = 0; s < states; ++s) {
        const bool is_full = (full >> s & 1) != 0;
        list.push_back(is_full ? std::pair{1.5f, 0.25f} : std::pair{kNaN, -kInfinity});
        count += is_full;
      }
      const Result result = merge_constants(backend(), list);
      for (float x : result.o) {
        if (count <= 1) {
          EXPECT_EQ(x, count == 0 ? 0.0f : 1.5f);
        }
        EXPECT_NEAR(x, count == 0 ? 0.0 : 1.5, 1.5 * 4 * 0x1p-24);
      }
      if (count == 0) {
        EXPECT_EQ(result.lse[0], -kInfinity);
      }
      if (count == 1) {
        EXPECT_EQ(result.lse[0], 0.25f);
      }
      if (count >= 2) {
        EXPECT_NEAR(result.lse[0], 0.25 + std::log(count), 8 * 0x1p-24);
      }
    }
  }
}

TEST_P(Cases, H03_ShapesOfTheCase) {
  Merge m{2,
          4,
          8,
          64,
          std::vector<float>(2 * 4 * 8 * 64, 0.0f),
          std::vector<float>(2 * 4 * 8, -kInfinity)};
  const Result result = run_merge(backend(), m);
  for (float x : result.o) EXPECT_EQ(x, 0.0f);
  for (float x : result.lse) EXPECT_EQ(x, -kInfinity);
}

// No cache is involved, so head_dim is free: odd, and beyond what any cache has.
TEST_P(Cases, H03_AnyHeadDim) {
  for (const int head_dim : {1, 257, 1024}) {
    Merge m{2, 3, 2, head_dim, {}, std::vector<float>(2 * 3 * 2, 0.5f)};
    const auto elements = static_cast<std::size_t>(3 * 2 * head_dim);
    m.v.assign(elements, 1.0f);
    m.v.insert(m.v.end(), elements, 3.0f);
    const Result result = run_merge(backend(), m);
    ASSERT_EQ(result.o.size(), elements);
    for (float x : result.o) EXPECT_NEAR(x, 2.0, 2 * 4 * 0x1p-24) << head_dim;
    for (float x : result.lse) EXPECT_NEAR(x, 0.5 + std::log(2.0), 8 * 0x1p-24);
  }
}

TEST_P(Cases, H04_NaturalLogarithm) {
  Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
             .head_dim = 64,
             .page_size = 64,
             .num_qo_heads = 1,
             .num_kv_heads = 1,
             .kv_lens = {3072}};
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  const Result a =
      run_decode(backend(), make_cache(g, constant_rows(0.0f), constant_rows(0.0f)), gaussian_q(g));
  g.kv_lens = {64};
  const Result b =
      run_decode(backend(), make_cache(g, constant_rows(0.0f), constant_rows(1.0f)), gaussian_q(g));
  EXPECT_NEAR(a.lse[0], std::log(3072.0), tol.lse * 9);
  EXPECT_NEAR(b.lse[0], std::log(64.0), tol.lse * 9);
  Merge m{2, 1, 1, 64, a.o, {a.lse[0], b.lse[0]}};
  m.v.insert(m.v.end(), b.o.begin(), b.o.end());
  const Result merged = run_merge(backend(), m);
  EXPECT_NEAR(merged.lse[0], std::log(3136.0), tol.lse * 9);
  g.kv_lens = {3136};
  const auto v = [](int, int, int t, std::span<float> row) {
    std::fill(row.begin(), row.end(), t < 3072 ? 0.0f : 1.0f);
  };
  const Result one_pass =
      run_decode(backend(), make_cache(g, constant_rows(0.0f), v), gaussian_q(g));
  for (std::size_t c = 0; c < 64; ++c) {
    EXPECT_NEAR(merged.o[c], 64.0 / 3136, 1e-4);
    EXPECT_NEAR(one_pass.o[c], 64.0 / 3136, 1e-4);
  }
}

TEST_P(Cases, H05_PartsWithDifferentOffsets) {
  Geometry g{.num_qo_heads = 1, .num_kv_heads = 1, .kv_lens = {4}};
  const std::vector<float> q = constant_q(g, 1.0f);
  const auto part = [&](float k_offset, int first) {
    const auto v = [first](int, int, int t, std::span<float> row) {
      std::fill(row.begin(), row.end(), static_cast<float>(first + t));
    };
    return run_decode(backend(), make_cache(g, constant_rows(k_offset), v), q);
  };
  const Result a = part(0.5f, 0), b = part(0.0f, 4);
  Merge m{2, 1, 1, 128, a.o, {a.lse[0], b.lse[0]}};
  m.v.insert(m.v.end(), b.o.begin(), b.o.end());
  const Result merged = run_merge(backend(), m);
  g.kv_lens = {8};
  const auto k = [](int, int, int t, std::span<float> row) {
    std::fill(row.begin(), row.end(), t < 4 ? 0.5f : 0.0f);
  };
  const HostCache all = make_cache(g, k, token_index_rows());
  Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  tol.o *= 2;  // two roundings: of the parts and of the merge
  tol.lse *= 2;
  expect_matches(merged, oracle_decode(all, q), tol, g);
}

TEST_P(Cases, H06_EmptyRequestsInAMerge) {
  const Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
                   .head_dim = 64,
                   .num_qo_heads = 4,
                   .num_kv_heads = 4,
                   .kv_lens = {0, 3}};
  const Result part =
      run_decode(backend(), make_cache(g, constant_rows(0.0f), token_index_rows()), gaussian_q(g));
  Merge m{2, 2, 4, 64, part.o, part.lse};
  m.v.insert(m.v.end(), part.o.size(), 9.0f);
  m.lse.insert(m.lse.end(), part.lse.size(), 1.0f);
  const Result merged = run_merge(backend(), m);
  for (std::size_t i = 0; i < 4 * 64; ++i) EXPECT_EQ(merged.o[i], 9.0f);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(merged.lse[i], 1.0f);
  // Request 1: weights 3 (mean 1) and e.
  const double e = std::exp(1.0), want = (3 * 1.0 + e * 9.0) / (3 + e);
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  for (std::size_t i = 4 * 64; i < 8 * 64; ++i) EXPECT_NEAR(merged.o[i], want, 2 * tol.o * want);
}

TEST_P(Cases, H06_BrokenLseIsNeverAPlausibleNumber) {
  for (float broken : {kInfinity, kNaN}) {
    for (int at = 0; at < 3; ++at) {
      for (float others : {0.5f, -kInfinity}) {
        std::vector<std::pair<float, float>> states(3, {2.0f, others});
        states[static_cast<std::size_t>(at)].second = broken;
        const Result result = merge_constants(backend(), states);
        for (float x : result.o) EXPECT_TRUE(std::isnan(x)) << broken << " at " << at;
        EXPECT_TRUE(std::isnan(result.lse[0]) || result.lse[0] == kInfinity);
      }
    }
    EXPECT_TRUE(std::isnan(merge_constants(backend(), {{2.0f, broken}}).o[0]));
  }
}

TEST_P(Decode, MergeOfRandomStates) {
  for (int states : {1, 2, 7, 64}) {
    for (int head_dim : {64, 128, 256}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        Merge m{states, 3, 5, head_dim, {}, {}};
        m.v.resize(static_cast<std::size_t>(states * 15 * head_dim));
        gaussian_rows(4)(0, 0, 0, m.v);
        m.v = to_floats(to_bytes(m.v, dtype), dtype);
        m.lse.resize(static_cast<std::size_t>(states * 15));
        gaussian_rows(5)(0, 0, 0, m.lse);
        for (std::size_t i = 0; i < m.lse.size(); ++i)
          m.lse[i] = i % 11 == 3 ? -kInfinity : m.lse[i] * 3 + 100;
        const Result result = run_merge(backend(), m, dtype);
        const double rounding =
            dtype == DType::kF32 ? 0x1p-24 : (dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
        for (std::size_t row = 0; row < 15; ++row) {
          double max = -kInfinity, sum = 0;
          for (std::size_t s = 0; s < static_cast<std::size_t>(states); ++s)
            max = std::max(max, static_cast<double>(m.lse[s * 15 + row]));
          if (std::isinf(max)) {
            EXPECT_EQ(result.lse[row], -kInfinity);
            continue;
          }
          for (std::size_t s = 0; s < static_cast<std::size_t>(states); ++s)
            sum += std::exp(m.lse[s * 15 + row] - max);
          EXPECT_NEAR(result.lse[row], max + std::log(sum), 4 * 0x1p-24 * 110);
          for (std::size_t c = 0; c < static_cast<std::size_t>(head_dim); ++c) {
            double want = 0, magnitude = 0;
            for (std::size_t s = 0; s < static_cast<std::size_t>(states); ++s) {
              const double weight = std::exp(m.lse[s * 15 + row] - max) / sum,
                           v = m.v[(s * 15 + row) * static_cast<std::size_t>(head_dim) + c];
              want += weight * v;
              magnitude += weight * std::abs(v);
            }
            // FP32 weights: the exponent's argument is exact to 2^-24 * 110, the rest are a few
            // roundings.
            EXPECT_NEAR(result.o[row * static_cast<std::size_t>(head_dim) + c], want,
                        rounding * std::abs(want) + (16 + 110) * 0x1p-24 * magnitude + 0x1p-25);
          }
        }
      }
    }
  }
}

// A prefix that all requests share, decoded once, merged with each request's own tail.
TEST_P(Cases, H76_SharedPrefix) {
  const std::vector<int> tails{0, 1, 5, 16, 17, 100, 3, 900};
  Geometry g{.num_qo_heads = 8, .num_kv_heads = 2, .kv_lens = {}};
  const auto rows = [](unsigned seed, int first) {
    // The first 1024 tokens do not depend on the request.
    return [=, gauss = gaussian_rows(seed)](int b, int head, int t, std::span<float> row) {
      gauss(first + t < 1024 ? 0 : b + 1, head, first + t, row);
    };
  };
  for (int tail : tails) g.kv_lens.push_back(1024 + tail);
  const std::vector<float> q = gaussian_q(g);
  const HostCache flat = make_cache(g, rows(1, 0), rows(2, 0));
  Geometry prefix_g = g, tail_g = g;
  prefix_g.kv_lens.assign(8, 1024);
  tail_g.kv_lens = tails;
  HostCache prefix = make_cache(prefix_g, rows(1, 0), rows(2, 0));
  for (auto& pages : prefix.pages) pages = prefix.pages[0];
  const Result a = run_decode(backend(), prefix, q),
               b = run_decode(backend(), make_cache(tail_g, rows(1, 1024), rows(2, 1024)), q);
  Merge m{2, 8, 8, 128, a.o, a.lse};
  m.v.insert(m.v.end(), b.o.begin(), b.o.end());
  m.lse.insert(m.lse.end(), b.lse.begin(), b.lse.end());
  Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  tol.o *= 2;
  tol.lse *= 2;
  expect_matches(run_merge(backend(), m), oracle_decode(flat, q), tol, g);
}

}  // namespace
}  // namespace foscar::test
