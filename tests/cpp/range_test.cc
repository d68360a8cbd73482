// Range discipline: folding multiplies scales into queries and probabilities, so extreme scales and
// queries must neither overflow nor make their neighbours vanish.
#include <gtest/gtest.h>

#include <cmath>

#include "oracle.h"

namespace foscar::test {
namespace {

int hashed_code(int a, int b, int levels) { return (a * 7919 + b * 104729 + (a ^ b)) % levels; }

Geometry two_groups(DType q_dtype) {
  return {.format = KvFormat::parse("k4v4-token-g32-f32"),
          .head_dim = 64,
          .num_qo_heads = 1,
          .num_kv_heads = 1,
          .kv_lens = {16},
          .q_dtype = q_dtype};
}

TEST_P(Cases, H25_HugeScaleOfZeroCodes) {
  for (DType q_dtype : {DType::kF16, DType::kBF16}) {
    const Geometry g = two_groups(q_dtype);
    HostCache cache = make_cache(g, constant_rows(0.0f), gaussian_rows(2));
    for (int t = 0; t < 16; ++t) {
      write_group(cache, false, 0, 0, t, 0, 1.0f / 32, 0.0f,
                  [t](int c) { return hashed_code(t, c, 16); });
      write_group(cache, false, 0, 0, t, 1, 1e8f, 0.0f, [](int) { return 0; });
    }
    expect_right(backend(), cache, constant_q(g, 1.0f));
    expect_right(backend(), cache, gaussian_q(g));
  }
}

// The same on the V side: the channels of the huge group are 0, the others keep their precision.
TEST_P(Cases, H25_HugeVScaleOfZeroCodes) {
  const Geometry g = two_groups(DType::kBF16);
  HostCache cache = make_cache(g, gaussian_rows(1), constant_rows(0.0f));
  for (int t = 0; t < 16; ++t) {
    write_group(cache, true, 0, 0, t, 0, 1.0f / 32, 0.0f,
                [t](int c) { return hashed_code(t, c, 16); });
    write_group(cache, true, 0, 0, t, 1, 1e8f, 0.0f, [](int) { return 0; });
  }
  const std::vector<float> q = gaussian_q(g);
  expect_right(backend(), cache, q);
  const Result result = run_decode(backend(), cache, q);
  for (std::size_t c = 32; c < 64; ++c) EXPECT_EQ(result.o[c], 0.0f);
}

TEST_P(Cases, H26_OneLoudChannel) {
  const auto loud = [](int b, int head, int t, std::span<float> row) {
    gaussian_rows(1)(b, head, t, row);
    row[5] += 300.0f;
  };
  for (const char* name :
       {"k2v2-token-g128-f32", "k4v4-token-g128-f32", "k2v2-token-g32-f32", "k4v4-token-g32-f32"}) {
    const Geometry g{.format = KvFormat::parse(name), .kv_lens = {256}};
    expect_right(backend(), make_cache(g, loud, gaussian_rows(2)), gaussian_q(g));
  }
}

TEST_P(Cases, H27_QueriesBeyondFp16) {
  for (const auto& [q_dtype, loud] : {std::pair{DType::kBF16, 1e5f}, std::pair{DType::kF16, 6e4f},
                                      std::pair{DType::kBF16, 1e30f}}) {
    const Geometry g{.num_qo_heads = 2, .num_kv_heads = 1, .kv_lens = {16}, .q_dtype = q_dtype};
    HostCache cache = make_cache(g, constant_rows(0.0f), gaussian_rows(2));
    for (int t = 0; t < 16; ++t) {
      write_group(cache, false, 0, 0, t, 0, 1.0f / loud, 0.0f,
                  [t](int c) { return hashed_code(t, c, 4); });
    }
    std::vector<float> q = constant_q(g, 0.0f);
    q[9] = loud;
    q[128 + 100] = -loud;
    q = to_floats(to_bytes(q, q_dtype), q_dtype);
    expect_right(backend(), cache, q);
  }
}

TEST_P(Cases, H28_SmallScaleBesideAHugeOne) {
  for (int qo_len : {1, 2}) {
    for (DType q_dtype : {DType::kF16, DType::kBF16}) {
      Geometry g = two_groups(q_dtype);
      g.qo_len = qo_len;
      g.kv_lens = {2};
      HostCache cache = empty_cache(g);
      for (int t = 0; t < 2; ++t) {
        // 32 channels of code 3, scale 1/32, q = 1: a logit of 3 for token 0.
        write_group(cache, false, 0, 0, t, 0, 1.0f / 32, 0.0f, [t](int) { return t == 0 ? 3 : 0; });
        write_group(cache, false, 0, 0, t, 1, 1e8f, 0.0f, [](int) { return 0; });
        for (int group = 0; group < 2; ++group) {
          write_group(cache, true, 0, 0, t, group, 1.0f, t == 0 ? 1.0f : 0.0f,
                      [](int) { return 0; });
        }
      }
      const RunOptions options{.causal = false, .sm_scale = 1.0};
      const Result result = run_decode(backend(), cache, constant_q(g, 1.0f), options);
      const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, options));
      const double sigmoid = 1 / (1 + std::exp(-3.0)),
                   lse = 3 + std::log1p(std::exp(-3.0));  // 0.952574, 3.048587
      for (float x : result.o) EXPECT_NEAR(x, sigmoid, 2 * tol.o * sigmoid);
      for (float x : result.lse) EXPECT_NEAR(x, lse, tol.lse * lse);
    }
  }
}

// Tokens whose V is flat carry scale 1 by convention, and code 0. Small values beside them must
// survive.
TEST_P(Decode, FlatTokensAmongSmallValues) {
  for (float magnitude : {1e-2f, 1e-4f, 1e-6f}) {
    for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g64-f32"}) {
      const Geometry g{.format = KvFormat::parse(name), .kv_lens = {96}};
      const auto rows = [magnitude](int b, int head, int t, std::span<float> row) {
        gaussian_rows(2)(b, head, t, row);
        for (float& x : row) x = t % 3 == 0 ? 0.0f : magnitude * x;
      };
      expect_right(backend(), make_cache(g, gaussian_rows(1), rows), gaussian_q(g));
    }
  }
}

// V magnitudes over 30 orders; the queries make any of them the loudest.
TEST_P(Decode, VScalesOverManyOrders) {
  const auto rows = [](int b, int head, int t, std::span<float> row) {
    gaussian_rows(2)(b, head, t, row);
    for (float& x : row) x *= static_cast<float>(std::pow(10.0, t % 31 - 15));
  };
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g32-f32"}) {
    const Geometry g{.format = KvFormat::parse(name), .kv_lens = {200}};
    const HostCache cache = make_cache(g, gaussian_rows(1), rows);
    for (double sm_scale : {0.0, 1.0, 5.0})
      expect_right(backend(), cache, gaussian_q(g), {.sm_scale = sm_scale});
  }
}

TEST_P(Decode, KScalesOverManyOrders) {
  const auto rows = [](int b, int head, int t, std::span<float> row) {
    gaussian_rows(1)(b, head, t, row);
    for (std::size_t c = 0; c < row.size(); ++c)
      row[c] *= static_cast<float>(std::pow(10.0, static_cast<int>(c / 32) * 2 - 6));
  };
  for (const char* name : {"k2v2-token-g32-f32", "k4v4-token-g32-bf16"}) {
    const Geometry g{.format = KvFormat::parse(name), .kv_lens = {150}};
    const HostCache cache = make_cache(g, rows, gaussian_rows(2));
    // Queries that undo the range, so that every group matters.
    std::vector<float> q = gaussian_q(g);
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] *= static_cast<float>(std::pow(10.0, 6 - static_cast<int>(i % 128 / 32) * 2));
    q = to_floats(to_bytes(q, g.q_dtype), g.q_dtype);
    expect_right(backend(), cache, q);
  }
}

// Softmax extremes: one token far above the rest, in every position relative to split and tile
// boundaries; and logits so far apart that most weights underflow.
TEST_P(Decode, OneLoudToken) {
  for (int loud : {0, 1, 63, 64, 127, 199}) {
    const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"), .kv_lens = {200}};
    const auto keys = [loud](int b, int head, int t, std::span<float> row) {
      gaussian_rows(1)(b, head, t, row);
      for (float& x : row) x = t == loud ? 20.0f + x : x;
    };
    const HostCache cache = make_cache(g, keys, gaussian_rows(2));
    for (int chunk : {0, 64}) {
      expect_right(backend(), cache, constant_q(g, 1.0f), {.kv_chunk_size = chunk});
      expect_right(backend(), cache, constant_q(g, -1.0f), {.kv_chunk_size = chunk});
    }
  }
}

TEST_P(Decode, ZeroQuery) {
  const Geometry g{.kv_lens = {77}};
  expect_right(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)), constant_q(g, 0.0f));
}

}  // namespace
}  // namespace foscar::test
