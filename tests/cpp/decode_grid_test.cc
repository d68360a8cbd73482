// Decode against the tests' own double-precision attention, over the whole space of formats and
// shapes.
//
// The full product (4 widths x 4 groups x 3 parameter types x 3 head dims x 9 page sizes x 12 head
// ratios x 3 query types x 2 tables) is far too large; covered are all pairs that interact in the
// code:
//   Formats   every (k_bits, v_bits, group, parameters, head_dim), the page size running along
//   Pages     every (page_size, head_dim, bits), with lengths around every boundary
//   Heads     every GQA ratio x bits x {1 KV head, several}
//   Queries   every (query type, output type, head_dim, bits)
#include <gtest/gtest.h>

#include "oracle.h"

namespace foscar::test {
namespace {

HostCache gaussian_cache(const Geometry& g) {
  return make_cache(g, gaussian_rows(1), gaussian_rows(2));
}

TEST_P(Decode, Formats) {
  int page_shift = 0;
  for (const char* bits : {"k2v2", "k4v4", "k4v2", "k2v4"}) {
    for (int head_dim : {64, 128, 256}) {
      for (int group : {32, 64, 128, 256}) {
        if (group > head_dim) continue;
        for (const char* params : {"f32", "f16", "bf16"}) {
          Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g" +
                                               std::to_string(group) + "-" + params),
                     .head_dim = head_dim,
                     .page_size = 1 << page_shift++ % 9,
                     .num_qo_heads = 8,
                     .num_kv_heads = 2,
                     .kv_lens = {71, 1, 150}};
          expect_right(backend(), gaussian_cache(g), gaussian_q(g), {.csr = page_shift % 2 == 0});
        }
      }
    }
  }
}

// K and V may have groups of different sizes, although names cannot say so.
TEST_P(Decode, GroupsDifferBetweenSides) {
  for (int k_group : {32, 64, 128}) {
    for (int v_group : {32, 64, 128}) {
      const Geometry g{
          .format = {{2, QuantAxis::kToken, k_group}, {4, QuantAxis::kToken, v_group}, DType::kF16},
          .kv_lens = {90}};
      expect_right(backend(), gaussian_cache(g), gaussian_q(g));
    }
  }
}

TEST_P(Cases, H09_EveryPageSize) {
  for (const char* name : {"k2v2-token-g64-f32", "k4v4-token-g64-f32"}) {
    for (int head_dim : {64, 128, 256}) {
      for (int page_size = 1; page_size <= 256; page_size *= 2) {
        const Geometry g{.format = KvFormat::parse(name),
                         .head_dim = head_dim,
                         .page_size = page_size,
                         .num_qo_heads = 4,
                         .num_kv_heads = 1,
                         .kv_lens = {1, 15, 16, 17, 64, 65, 200, 256, 257}};
        expect_right(backend(), gaussian_cache(g), gaussian_q(g));
      }
    }
  }
}

// With split boundaries fixed, the page size is only a matter of addresses: not a bit changes.
TEST_P(Cases, H09_PageSizeChangesNoBit) {
  if (backend().is_cuda()) GTEST_SKIP() << "a promise of the CPU backends";
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g32-f16"}) {
    Geometry g{.format = KvFormat::parse(name),
               .page_size = 256,
               .kv_lens = {1, 15, 16, 17, 64, 65, 200, 700}};
    const RunOptions options{.kv_chunk_size = 256};
    const Result first = run_decode(backend(), gaussian_cache(g), gaussian_q(g), options);
    for (int page_size = 1; page_size < 256; page_size *= 2) {
      g.page_size = page_size;
      EXPECT_TRUE(
          same_bits(run_decode(backend(), gaussian_cache(g), gaussian_q(g), options), first))
          << page_size;
    }
  }
}

TEST_P(Decode, GqaRatios) {
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
    for (int ratio : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 33, 64}) {
      for (int num_kv_heads : {1, 3}) {
        const Geometry g{.format = KvFormat::parse(name),
                         .num_qo_heads = ratio * num_kv_heads,
                         .num_kv_heads = num_kv_heads,
                         .kv_lens = {100, 33}};
        expect_right(backend(), gaussian_cache(g), gaussian_q(g));
      }
    }
  }
}

TEST_P(Decode, QueryAndOutputTypes) {
  for (const char* name : {"k2v2-token-g64-f32", "k4v4-token-g64-f16"}) {
    for (int head_dim : {64, 128, 256}) {
      for (DType q_dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        if (backend().is_cuda() && q_dtype == DType::kF32) continue;
        for (DType o_dtype : {q_dtype, DType::kF32}) {
          const Geometry g{.format = KvFormat::parse(name),
                           .head_dim = head_dim,
                           .kv_lens = {129, 40},
                           .q_dtype = q_dtype};
          expect_right(backend(), gaussian_cache(g), gaussian_q(g), {.o_dtype = o_dtype});
        }
      }
    }
  }
}

// Long enough for several splits of any schedule, peaked and flat softmax alike.
TEST_P(Decode, LongContexts) {
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
    const Geometry g{.format = KvFormat::parse(name),
                     .page_size = 64,
                     .num_qo_heads = 4,
                     .num_kv_heads = 1,
                     .kv_lens = {5000, 3, 2049}};
    const HostCache cache = gaussian_cache(g);
    for (double sm_scale : {0.0, 1e-3, 1.0}) {
      for (int chunk : {0, 64, 1024}) {
        expect_right(backend(), cache, gaussian_q(g),
                     {.kv_chunk_size = chunk, .sm_scale = sm_scale});
      }
    }
  }
}

TEST_P(Decode, NegativeScaleIsLegal) {
  const Geometry g{.kv_lens = {50}};
  expect_right(backend(), gaussian_cache(g), gaussian_q(g), {.sm_scale = -0.2});
}

// Offsets far from zero: K and V with a common bias, which the folded terms must carry and the
// codes do not.
TEST_P(Decode, BiasedValues) {
  const auto biased = [](unsigned seed, float bias) {
    return [=, gauss = gaussian_rows(seed)](int b, int head, int t, std::span<float> row) {
      gauss(b, head, t, row);
      for (float& x : row) x += bias;
    };
  };
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g32-f32"}) {
    const Geometry g{.format = KvFormat::parse(name), .kv_lens = {300}};
    expect_right(backend(), make_cache(g, biased(1, 3.0f), biased(2, -5.0f)), gaussian_q(g));
  }
}

TEST_P(Decode, Deterministic) {
  const Geometry g{.kv_lens = {700, 0, 65, 2000}};
  const HostCache cache = gaussian_cache(g);
  const Result first = run_decode(backend(), cache, gaussian_q(g));
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(same_bits(run_decode(backend(), cache, gaussian_q(g)), first));
}

TEST_P(Cases, H79_NeighboursChangeNoBit) {
  if (backend().is_cuda()) GTEST_SKIP() << "the cuda backend has no fixed splits yet";
  const auto x_rows = [](unsigned seed) {
    // Request 0 has the same tokens whatever stands beside it; its pages lie elsewhere each time.
    return gaussian_rows(seed);
  };
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
    Geometry g{
        .format = KvFormat::parse(name), .num_qo_heads = 8, .num_kv_heads = 2, .kv_lens = {2500}};
    const RunOptions options{.kv_chunk_size = 256};
    const std::vector<float> q = gaussian_q(g);
    const std::size_t row = q.size();
    const Result alone = run_decode(backend(), make_cache(g, x_rows(1), x_rows(2)), q, options);
    for (int neighbours : {1, 7, 31}) {
      Geometry crowd = g;
      for (int i = 0; i < neighbours; ++i) crowd.kv_lens.push_back((i * 37 + 5) % 300);
      std::vector<float> crowd_q = gaussian_q(crowd, 9);
      std::copy(q.begin(), q.end(), crowd_q.begin());
      const Result result =
          run_decode(backend(), make_cache(crowd, x_rows(1), x_rows(2), 11), crowd_q, options);
      const Result mine{{result.o.begin(), result.o.begin() + static_cast<std::ptrdiff_t>(row)},
                        {result.lse.begin(), result.lse.begin() + g.num_qo_heads}};
      EXPECT_TRUE(same_bits(mine, alone)) << neighbours << " neighbours";
    }
  }
}

}  // namespace
}  // namespace foscar::test
