// Windows, masks among the new tokens, soft cap, attention sinks. Where a backend does not take an option, the test first sees it
// refuse by name, then says so and skips.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "oracle.h"

namespace foscar::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HostCache tracer(const Geometry& g) {
  return make_cache(g, constant_rows(0.0f), token_index_rows());
}

// Empty if the backend takes the options; else the reason, after a call that it refused.
std::string refusal(const TestBackend& backend, const Geometry& g, const RunOptions& options) {
  const Support support = supported({.format = g.format,
                                     .head_dim = g.head_dim,
                                     .page_size = g.page_size,
                                     .num_qo_heads = g.num_qo_heads,
                                     .num_kv_heads = g.num_kv_heads,
                                     .qo_len = g.qo_len,
                                     .q_dtype = g.q_dtype,
                                     .window_left = options.window_left >= 0,
                                     .mask = !options.mask.empty(),
                                     .logits_soft_cap = options.soft_cap > 0,
                                     .sinks = !options.sinks.empty()},
                                    backend.name);
  if (support.ok) return {};
  try {
    run_decode(backend, tracer(g), gaussian_q(g), options);
    ADD_FAILURE() << "not supported (" << support.reason << "), and yet no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.what(), support.reason);
  }
  return support.reason;
}

#define SKIP_IF_REFUSED(g, options)                                               \
  if (const std::string reason = refusal(backend(), g, options); !reason.empty()) \
  GTEST_SKIP() << reason

// All heads and channels of row (b, i).
void expect_row(const TestBackend& backend, const Geometry& g, const Result& result, int b, int i,
                double o, double lse) {
  const Tolerance tol = tolerance(backend, output_dtype(backend, g, {}));
  const auto dim = static_cast<std::size_t>(g.head_dim);
  for (int h = 0; h < g.num_qo_heads; ++h) {
    const std::size_t row = (static_cast<std::size_t>(b) * g.qo_len + i) * g.num_qo_heads + h;
    if (std::isinf(lse)) {
      EXPECT_EQ(result.lse[row], lse) << "request " << b << " row " << i;
    } else {
      EXPECT_NEAR(result.lse[row], lse, tol.lse * std::max(1.0, std::abs(lse)))
          << "request " << b << " row " << i << ": " << g.text();
    }
    for (std::size_t c = 0; c < dim; ++c) {
      ASSERT_NEAR(result.o[row * dim + c], o, 2 * tol.o * std::abs(o))
          << "request " << b << " row " << i << " head " << h << " channel " << c << ": "
          << g.text();
    }
  }
}

TEST_P(Cases, H53_WindowCountsTheKeysBefore) {
  const Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
                   .head_dim = 64,
                   .page_size = 4,
                   .kv_lens = {10}};
  SKIP_IF_REFUSED(g, (RunOptions{.window_left = 3}));
  const auto expect = [&](int window_left, double o, int visible) {
    const Result result =
        run_decode(backend(), tracer(g), gaussian_q(g), {.window_left = window_left});
    expect_row(backend(), g, result, 0, 0, o, std::log(visible));
  };
  expect(3, 7.5, 4);
  expect(0, 9.0, 1);
  for (int window_left : {9, 10, -1, std::numeric_limits<int>::max()}) expect(window_left, 4.5, 10);
}

TEST_P(Cases, H54_SoftCapBeforeTheMask) {
  Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
             .head_dim = 64,
             .num_qo_heads = 1,
             .num_kv_heads = 1,
             .kv_lens = {2}};
  SKIP_IF_REFUSED(g, (RunOptions{.soft_cap = 5}));
  HostCache cache = empty_cache(g);  // unused slots: codes 3, scales NaN
  for (int t = 0; t < 2; ++t) {
    // q = 1/8 in all 64 channels: token 0 has logit 64 * 1.25 / 8 = 10 at sm_scale 1, token 1 has 0.
    write_group(cache, false, 0, 0, t, 0, 1.0f, t == 0 ? 1.25f : 0.0f, [](int) { return 0; });
    write_group(cache, true, 0, 0, t, 0, 1.0f, t == 0 ? 1.0f : 0.0f, [](int) { return 0; });
  }
  const std::vector<float> q = constant_q(g, 0.125f);
  const RunOptions capped{.sm_scale = 1.0, .soft_cap = 5};
  expect_row(backend(), g, run_decode(backend(), cache, q, capped), 0, 0, 0.991999, 4.828171);
  RunOptions windowed = capped;
  windowed.window_left = 0;
  SKIP_IF_REFUSED(g, windowed);
  expect_row(backend(), g, run_decode(backend(), cache, q, windowed), 0, 0, 0.0, 0.0);
}

TEST_P(Cases, H55_SinkOnceWhateverTheSplits) {
  for (const auto& [kv_len, window_left] : {std::pair{3, -1}, std::pair{4096, 2}}) {
    for (int chunk : {0, 64, 1024}) {
      const Geometry g{.kv_lens = {kv_len}};
      const RunOptions options{
          .kv_chunk_size = chunk, .window_left = window_left, .sinks = std::vector<float>(8, 0.0f)};
      SKIP_IF_REFUSED(g, options);
      const HostCache cache = make_cache(g, constant_rows(0.0f), constant_rows(1.0f));
      expect_row(backend(), g, run_decode(backend(), cache, gaussian_q(g), options), 0, 0, 0.75,
                 std::log(4.0));
    }
  }
}

TEST_P(Cases, H56_SinksOverQuantizedPages) {
  std::mt19937 random(56);
  std::normal_distribution<float> normal;
  for (const char* bits : {"k2v2", "k4v4"}) {
    Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g64-f32"),
               .head_dim = 64,
               .num_qo_heads = 64,
               .num_kv_heads = 8,
               .kv_lens = {1, 128, 129, 1500}};
    for (int window_left : {127, -1}) {
      RunOptions options{.window_left = window_left};
      for (int h = 0; h < 64; ++h) options.sinks.push_back(normal(random));
      SKIP_IF_REFUSED(g, options);
      expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), gaussian_q(g),
                   options);
    }
  }
}

TEST_P(Cases, H57_TreeMask) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"),
                   .num_qo_heads = 8,
                   .num_kv_heads = 1,
                   .qo_len = 4,
                   .kv_lens = {10, 3}};
  // Row 3 does not see new token 1, which is token 7 of request 0.
  const std::vector<std::uint8_t> tree{1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1};
  const RunOptions options{.mask = tree};
  SKIP_IF_REFUSED(g, options);
  const Result result = run_decode(backend(), tracer(g), gaussian_q(g), options);
  for (int i = 0; i < 3; ++i)
    expect_row(backend(), g, result, 0, i, 3.0 + 0.5 * i, std::log(7 + i));
  expect_row(backend(), g, result, 0, 3, (45.0 - 7) / 9, std::log(9));
  // Request 1 lacks new token 0.
  expect_row(backend(), g, result, 1, 0, 0.0, kMinusInfinity);
  expect_row(backend(), g, result, 1, 1, 0.0, 0.0);
  expect_row(backend(), g, result, 1, 2, 0.5, std::log(2));
  expect_row(backend(), g, result, 1, 3, 1.5, std::log(2));
}

// The first 14 of 20 rows see no key at all: their mask is empty and their window holds only themselves.
TEST_P(Cases, H18_RowsWithoutKeysUnderASink) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"),
                   .num_qo_heads = 8,
                   .num_kv_heads = 8,
                   .qo_len = 20,
                   .kv_lens = {32}};
  RunOptions options{.window_left = 0, .sinks = std::vector<float>(8, 0.0f)};
  options.mask.assign(400, 1);
  std::fill_n(options.mask.begin(), 14 * 20, std::uint8_t{0});
  SKIP_IF_REFUSED(g, options);
  const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  const std::vector<float> q = gaussian_q(g);
  const Result result = run_decode(backend(), cache, q, options);
  for (int i = 0; i < 14; ++i) expect_row(backend(), g, result, 0, i, 0.0, 0.0);
  expect_matches(result, oracle_decode(cache, q, options),
                 tolerance(backend(), output_dtype(backend(), g, options), 8), g);
}

TEST_P(Decode, ModifiersTogether) {
  std::mt19937 random(7);
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f16", "k2v4-token-g32-f32",
                           "k4v2-token-g64-bf16"}) {
    for (int qo_len : {1, 3, 16}) {
      for (int window_left : {-1, 0, 5, 70, 300}) {
        for (int mask_kind : {0, 1, 2}) {  // none, shared, one per request
          const Geometry g{.format = KvFormat::parse(name),
                           .num_qo_heads = 4,
                           .num_kv_heads = 2,
                           .qo_len = qo_len,
                           .kv_lens = {2, 0, 330, 65, 16}};
          RunOptions options{.kv_chunk_size = qo_len == 3 ? 64 : 0,
                             .window_left = window_left,
                             .soft_cap = mask_kind == 1 ? 3.0 : 0.0};
          if (mask_kind > 0) {
            options.mask.resize(
                static_cast<std::size_t>((mask_kind == 1 ? 1 : 5) * qo_len * qo_len));
            // Any value but 0 is true.
            for (std::uint8_t& m : options.mask) m = random() % 3 == 0 ? 0 : 1 + random() % 255;
          }
          if (qo_len != 16) options.sinks = {0.5f, kMinusInfinity, 40.0f, -40.0f};
          SKIP_IF_REFUSED(g, options);
          SCOPED_TRACE("window_left " + std::to_string(window_left) + " mask " +
                       std::to_string(mask_kind));
          expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), gaussian_q(g),
                       options);
        }
      }
    }
  }
}

// Tokens that a row does not see may hold NaN, whatever hides them.
TEST_P(Decode, HiddenTokensMayBeNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g32-f32"}) {
    const Geometry g{.format = KvFormat::parse(name), .qo_len = 3, .kv_lens = {200}};
    const auto spoiled = [&](unsigned seed) {
      return [seed, nan](int b, int head, int t, std::span<float> row) {
        gaussian_rows(seed)(b, head, t, row);
        if (t < 150 || t == 198) row[3] = nan;
      };
    };
    // The earliest row is at 197 and sees back to 157; new token 1 is token 198.
    const RunOptions options{.window_left = 40, .mask = {1, 0, 0, 1, 0, 1, 0, 0, 1}};
    SKIP_IF_REFUSED(g, options);
    const std::vector<float> q = gaussian_q(g);
    expect_right(backend(), make_cache(g, spoiled(1), spoiled(2)), q, options);
  }
}

TEST_P(Decode, SinkThatIsNan) {
  const Geometry g{.num_qo_heads = 2, .num_kv_heads = 1, .kv_lens = {5}};
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -kMinusInfinity}) {
    const RunOptions options{.sinks = {bad, 0.0f}};
    SKIP_IF_REFUSED(g, options);
    const Result result = run_decode(backend(), tracer(g), gaussian_q(g), options);
    EXPECT_TRUE(std::isnan(result.lse[0]) && std::isnan(result.o[0]));
    EXPECT_TRUE(std::isfinite(result.lse[1]) && std::isfinite(result.o[128]));
  }
}

// The LSE convention: two halves of the keys, the sinks given to one of them, merge to the whole.
TEST_P(Decode, PartsMergeWhenOneHasTheSinks) {
  const Geometry g{.num_qo_heads = 2, .num_kv_heads = 1, .kv_lens = {96}};
  const std::vector<float> sinks{1.5f, -0.5f}, q = gaussian_q(g);
  SKIP_IF_REFUSED(g, (RunOptions{.sinks = sinks}));
  const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  HostCache front = cache, back = cache;
  front.g.kv_lens = {64};
  front.pages[0].resize(4);
  back.g.kv_lens = {32};
  back.pages[0].erase(back.pages[0].begin(), back.pages[0].begin() + 4);
  const Result a = run_decode(backend(), front, q, {.sinks = sinks});
  const Result b = run_decode(backend(), back, q);
  const Result whole = run_decode(backend(), cache, q, {.sinks = sinks});
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}), 8);
  for (std::size_t h = 0; h < 2; ++h) {
    const double lse = std::log(std::exp(static_cast<double>(a.lse[h])) + std::exp(b.lse[h]));
    EXPECT_NEAR(whole.lse[h], lse, 3 * tol.lse * std::max(1.0, std::abs(lse)));
    for (std::size_t c = h * 128; c < (h + 1) * 128; ++c) {
      EXPECT_NEAR(whole.o[c], std::exp(a.lse[h] - lse) * a.o[c] + std::exp(b.lse[h] - lse) * b.o[c],
                  3 * (tol.o + tol.lse));
    }
  }
}

}  // namespace
}  // namespace foscar::test
