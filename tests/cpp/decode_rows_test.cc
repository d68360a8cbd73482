// Which keys a row sees: empty requests, single tokens, several new tokens per request, forced
// splits. The TRACER cache makes the answers plain: K = 0 and V[t] = t, so o is the mean index of
// the visible tokens and lse the logarithm of their number.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "oracle.h"

namespace foscar::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HostCache tracer(const Geometry& g) {
  return make_cache(g, constant_rows(0.0f), token_index_rows());
}

// Every channel and head of (request, new token) is `o`, and lse is ln(visible).
void expect_row(const TestBackend& backend, const Geometry& g, const Result& result, int b, int i,
                double o, int visible) {
  const Tolerance tol = tolerance(backend, output_dtype(backend, g, {}));
  for (int h = 0; h < g.num_qo_heads; ++h) {
    const std::size_t row = (static_cast<std::size_t>(b) * g.qo_len + i) * g.num_qo_heads + h;
    if (visible == 0) {
      EXPECT_EQ(result.lse[row], kMinusInfinity) << "request " << b << " row " << i;
    } else {
      EXPECT_NEAR(result.lse[row], std::log(visible), tol.lse * std::max(1.0, std::log(visible)));
    }
    for (int c = 0; c < g.head_dim; ++c) {
      const float got =
          result.o[row * static_cast<std::size_t>(g.head_dim) + static_cast<std::size_t>(c)];
      // The largest value that takes part is visible - 1; rounding of the weights scales with it.
      ASSERT_NEAR(got, o, visible == 0 ? 0.0 : 2 * tol.o * std::max(1.0, std::abs(o)))
          << "request " << b << " row " << i << " head " << h << " channel " << c << ": "
          << g.text();
    }
  }
}

TEST_P(Cases, H01_EmptyRequest) {
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
    for (bool csr : {false, true}) {
      const Geometry g{.format = KvFormat::parse(name), .kv_lens = {17, 0, 33}};
      const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
      const Result result = run_decode(backend(), cache, gaussian_q(g), {.csr = csr});
      expect_row(backend(), g, result, 1, 0, 0.0, 0);
      expect_matches(result, oracle_decode(cache, gaussian_q(g)),
                     tolerance(backend(), output_dtype(backend(), g, {})), g);
    }
  }
}

TEST_P(Cases, H01_EmptyBatch) {
  for (bool csr : {false, true}) {
    const Geometry g{.kv_lens = {}};
    const Result result = run_decode(backend(), empty_cache(g), {}, {.csr = csr});
    EXPECT_TRUE(result.o.empty() && result.lse.empty());
  }
}

TEST_P(Cases, H01_OnlyEmptyRequests) {
  for (int qo_len : {1, 3}) {
    const Geometry g{.qo_len = qo_len, .kv_lens = {0, 0, 0}};
    const Result result = run_decode(backend(), empty_cache(g), gaussian_q(g));
    for (int b = 0; b < 3; ++b) {
      for (int i = 0; i < qo_len; ++i) expect_row(backend(), g, result, b, i, 0.0, 0);
    }
  }
}

TEST_P(Cases, H02_MoreSplitsThanTokens) {
  const Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
                   .head_dim = 64,
                   .num_qo_heads = 8,
                   .num_kv_heads = 8,
                   .kv_lens = {5}};
  for (int chunk : {0, 64, 128, 512, 2048}) {
    expect_row(backend(), g,
               run_decode(backend(), tracer(g), gaussian_q(g), {.kv_chunk_size = chunk}), 0, 0, 2.0,
               5);
  }
}

TEST_P(Cases, H05_OffsetIsInTheLse) {
  for (const char* bits : {"k2v2", "k4v4"}) {
    const Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g128-f32"),
                     .num_qo_heads = 1,
                     .num_kv_heads = 1,
                     .kv_lens = {4}};
    const HostCache cache = make_cache(g, constant_rows(0.5f), token_index_rows());
    const Result result = run_decode(backend(), cache, constant_q(g, 1.0f));
    const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
    const double lse = 128 * 0.5 / std::sqrt(128.0) + std::log(4.0);  // 7.043149
    EXPECT_NEAR(result.lse[0], lse, tol.lse * lse);
    for (float x : result.o) EXPECT_NEAR(x, 1.5, 2 * tol.o * 1.5);
  }
}

TEST_P(Cases, H07_RowsWithoutKeys) {
  for (int chunk : {0, 64}) {
    const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"), .qo_len = 4, .kv_lens = {2}};
    const Result result = run_decode(backend(), tracer(g), gaussian_q(g), {.kv_chunk_size = chunk});
    expect_row(backend(), g, result, 0, 0, 0.0, 0);
    expect_row(backend(), g, result, 0, 1, 0.0, 0);
    expect_row(backend(), g, result, 0, 2, 0.0, 1);
    expect_row(backend(), g, result, 0, 3, 0.5, 2);
  }
}

TEST_P(Cases, H08_EveryResidueOfThePage) {
  for (const char* bits : {"k2v2", "k4v4"}) {
    Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g128-f32"), .kv_lens = {}};
    for (int len = 33; len <= 80; ++len) g.kv_lens.push_back(len);
    const Result result = run_decode(backend(), tracer(g), gaussian_q(g));
    for (int b = 0; b < 48; ++b) expect_row(backend(), g, result, b, 0, (33 + b - 1) / 2.0, 33 + b);
    expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), gaussian_q(g, 1));
  }
}

TEST_P(Cases, H10_ReversedPages) {
  Geometry g{.page_size = 32, .num_qo_heads = 16, .num_kv_heads = 1, .kv_lens = {100, 37}};
  HostCache cache = empty_cache(g);
  cache.pages = {{5, 4, 3, 2}, {1, 0}};
  cache.pool = run_append(backend(), cache,
                          {.k = all_rows(g, constant_rows(0)),
                           .v = all_rows(g, token_index_rows()),
                           .slots = all_slots(cache)});
  const Result result = run_decode(backend(), cache, gaussian_q(g));
  expect_row(backend(), g, result, 0, 0, 49.5, 100);
  expect_row(backend(), g, result, 1, 0, 18.0, 37);
}

TEST_P(Cases, H15_MoreRequestsThanAGridAxis) {
  // 70000 single-token requests that share one page.
  Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
             .head_dim = 64,
             .num_qo_heads = 2,
             .num_kv_heads = 1,
             .kv_lens = {1}};
  HostCache cache = make_cache(g, constant_rows(0.0f), constant_rows(3.0f));
  cache.g.kv_lens.assign(70000, 1);
  cache.pages.assign(70000, cache.pages[0]);
  const Result result =
      run_decode(backend(), cache, std::vector<float>(70000 * 2 * 64, 0.5f), {.extra_columns = 0});
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  for (float x : result.o) ASSERT_NEAR(x, 3.0, 3.0 * tol.o);
  for (float x : result.lse) ASSERT_NEAR(x, 0.0, tol.lse);
}

TEST_P(Cases, H16_ManyHeads) {
  Geometry g{.format = KvFormat::parse("k4v4-token-g64-f32"),
             .head_dim = 64,
             .num_qo_heads = 32,
             .num_kv_heads = 32,
             .kv_lens = {1}};
  HostCache cache = make_cache(g, constant_rows(0.0f), constant_rows(-2.5f));
  cache.g.kv_lens.assign(2050, 1);
  cache.pages.assign(2050, cache.pages[0]);
  const Result result = run_decode(backend(), cache, std::vector<float>(2050 * 32 * 64, 0.5f));
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
  for (float x : result.o) ASSERT_NEAR(x, -2.5, 2.5 * tol.o);
}

TEST_P(Cases, H57_CausalAndFull) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"),
                   .num_qo_heads = 8,
                   .num_kv_heads = 1,
                   .qo_len = 4,
                   .kv_lens = {10}};
  const Result causal = run_decode(backend(), tracer(g), gaussian_q(g));
  const Result full = run_decode(backend(), tracer(g), gaussian_q(g), {.causal = false});
  for (int i = 0; i < 4; ++i) {
    expect_row(backend(), g, causal, 0, i, 3.0 + 0.5 * i, 7 + i);
    expect_row(backend(), g, full, 0, i, 4.5, 10);
  }
}

TEST_P(Cases, H58_SplitsThatEarlyRowsDoNotSee) {
  for (int page_size : {1, 16}) {
    for (int kv_len : {256, 260, 264, 388}) {
      for (int chunk : {0, 64, 256}) {
        const Geometry g{.page_size = page_size,
                         .num_qo_heads = 16,
                         .num_kv_heads = 1,
                         .qo_len = 8,
                         .kv_lens = {kv_len, 3}};
        const RunOptions options{.kv_chunk_size = chunk};
        const Result result = run_decode(backend(), tracer(g), gaussian_q(g), options);
        for (int i = 0; i < 8; ++i) {
          const int visible = kv_len - 8 + i + 1;
          expect_row(backend(), g, result, 0, i, (visible - 1) / 2.0, visible);
        }
        expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), gaussian_q(g),
                     options);
      }
    }
  }
}

TEST_P(Decode, SeveralNewTokensEverywhere) {
  for (const char* name : {"k2v2-token-g32-f16", "k4v4-token-g64-f32"}) {
    for (int head_dim : {64, 128, 256}) {
      for (int qo_len : {2, 5, 8}) {
        for (int ratio : {1, 4, 7}) {
          const Geometry g{.format = KvFormat::parse(name),
                           .head_dim = head_dim,
                           .num_qo_heads = 2 * ratio,
                           .num_kv_heads = 2,
                           .qo_len = qo_len,
                           .kv_lens = {130, 4, 0, 65}};
          const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
          for (bool causal : {true, false})
            expect_right(backend(), cache, gaussian_q(g), {.causal = causal});
        }
      }
    }
  }
}

// Calls from several threads at once share whatever workers a backend keeps, and nothing else.
TEST_P(Cases, H64_ConcurrentCalls) {
  if (backend().is_cuda()) GTEST_SKIP() << "device calls are ordered by streams";
  const Geometry g{.kv_lens = {100, 100, 600, 100}};
  const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  const std::vector<float> q = gaussian_q(g);
  const Result alone = run_decode(backend(), cache, q);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 10; ++call)
        wrong += !same_bits(run_decode(backend(), cache, q), alone);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The newest token alone gives what the last row of several gives.
TEST_P(Decode, LastRowIsADecodeOfItsOwn) {
  const Geometry many{.qo_len = 3, .kv_lens = {300}};
  Geometry one = many;
  one.qo_len = 1;
  const HostCache cache = make_cache(many, gaussian_rows(1), gaussian_rows(2));
  HostCache cache_one = cache;
  cache_one.g = one;
  const std::vector<float> q = gaussian_q(many);
  const std::vector<float> last(q.end() - 8 * 128, q.end());
  const Result all = run_decode(backend(), cache, q),
               single = run_decode(backend(), cache_one, last);
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), one, {}));
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < single.o.size(); ++i) {
    const double a = all.o[2 * 8 * 128 + i], b = single.o[i];
    error += (a - b) * (a - b);
    norm += b * b;
  }
  EXPECT_LE(std::sqrt(error / norm), 2 * tol.o);
}

}  // namespace
}  // namespace foscar::test
