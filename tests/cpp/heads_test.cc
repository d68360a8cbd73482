// Head counts: every query head reads its own KV head, whatever the ratio and whatever tiles a
// kernel uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "oracle.h"

namespace foscar::test {
namespace {

// V of KV head j is j + 1, K is 0: query head h must give h / ratio + 1.
void expect_own_head(const TestBackend& backend, const char* format, int num_qo_heads,
                     int num_kv_heads, std::vector<int> kv_lens, int page_size) {
  const Geometry g{.format = KvFormat::parse(format),
                   .page_size = page_size,
                   .num_qo_heads = num_qo_heads,
                   .num_kv_heads = num_kv_heads,
                   .kv_lens = std::move(kv_lens)};
  const auto head_rows = [](int, int head, int, std::span<float> row) {
    std::fill(row.begin(), row.end(), static_cast<float>(head + 1));
  };
  const Result result =
      run_decode(backend, make_cache(g, constant_rows(0.0f), head_rows), gaussian_q(g));
  const Tolerance tol = tolerance(backend, output_dtype(backend, g, {}));
  for (int b = 0; b < g.batch_size(); ++b) {
    for (int h = 0; h < num_qo_heads; ++h) {
      const double want = h / (num_qo_heads / num_kv_heads) + 1;
      for (int c = 0; c < g.head_dim; ++c) {
        const std::size_t i =
            (static_cast<std::size_t>(b) * num_qo_heads + h) * 128 + static_cast<std::size_t>(c);
        ASSERT_NEAR(result.o[i], want, want * tol.o) << "head " << h << ": " << g.text();
      }
    }
  }
}

TEST_P(Cases, H36_UnevenRatios) {
  const int pairs[][2] = {{40, 8}, {24, 4}, {28, 4}, {12, 4}, {36, 4}, {8, 8}, {5, 1}};
  for (const auto& [qo, kv] : pairs) {
    for (const char* format : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
      expect_own_head(backend(), format, qo, kv, {1, 17, 129}, 16);
    }
  }
}

TEST_P(Cases, H37_RatiosAcrossTiles) {
  const int pairs[][2] = {{48, 2}, {40, 2}, {80, 4}, {24, 1}, {34, 2}};
  for (const auto& [qo, kv] : pairs)
    expect_own_head(backend(), "k4v4-token-g128-f32", qo, kv, {40}, 16);
}

TEST_P(Cases, H39_LargeRatios) {
  const int pairs[][2] = {{64, 4}, {32, 2}, {64, 1}, {48, 4}, {56, 4}, {96, 1}, {128, 1}};
  for (const auto& [qo, kv] : pairs) {
    for (const char* format : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
      expect_own_head(backend(), format, qo, kv, {3, 700}, 64);
      const Geometry g{.format = KvFormat::parse(format),
                       .page_size = 64,
                       .num_qo_heads = qo,
                       .num_kv_heads = kv,
                       .kv_lens = {70}};
      expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), gaussian_q(g));
    }
  }
}

// Ranks of a tensor-parallel model, each with its share of the heads, give together what one device
// gives.
TEST_P(Cases, H40_TensorParallelShares) {
  const Geometry whole{.num_qo_heads = 32, .num_kv_heads = 4, .kv_lens = {90, 20}};
  const RunOptions options{.kv_chunk_size = 64};
  const std::vector<float> q = gaussian_q(whole);
  const Result all =
      run_decode(backend(), make_cache(whole, gaussian_rows(1), gaussian_rows(2)), q, options);
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), whole, {}));
  for (int ranks : {2, 4, 8, 16, 32}) {
    Geometry share = whole;
    share.num_qo_heads = 32 / ranks;
    share.num_kv_heads = std::max(1, 4 / ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const int first_qo = rank * share.num_qo_heads, first_kv = first_qo / 8;
      const auto shifted = [&](unsigned seed) {
        return [=, rows = gaussian_rows(seed)](int b, int head, int t, std::span<float> row) {
          rows(b, head + first_kv, t, row);
        };
      };
      std::vector<float> share_q;
      for (int b = 0; b < 2; ++b) {
        const auto begin = q.begin() + (b * 32 + first_qo) * 128;
        share_q.insert(share_q.end(), begin, begin + share.num_qo_heads * 128);
      }
      const Result part =
          run_decode(backend(), make_cache(share, shifted(1), shifted(2)), share_q, options);
      for (std::size_t i = 0; i < part.lse.size(); ++i) {
        const std::size_t b = i / static_cast<std::size_t>(share.num_qo_heads),
                          h = i % static_cast<std::size_t>(share.num_qo_heads);
        const std::size_t row = b * 32 + static_cast<std::size_t>(first_qo) + h;
        ASSERT_NEAR(part.lse[i], all.lse[row],
                    2 * tol.lse * std::max(1.0f, std::abs(all.lse[row])));
        double error = 0, norm = 0;
        for (std::size_t c = 0; c < 128; ++c) {
          const double a = part.o[i * 128 + c], w = all.o[row * 128 + c];
          error += (a - w) * (a - w);
          norm += w * w;
        }
        ASSERT_LE(std::sqrt(error / norm), 2 * 2 * tol.o) << "rank " << rank << " of " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace foscar::test
