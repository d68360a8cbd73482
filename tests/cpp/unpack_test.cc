// Every code word through every backend's unpackers: of dequantize, and of the two halves of
// decode.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "oracle.h"

namespace foscar::test {
namespace {

// A cache whose K and V rows hold the given bytes; scale 1 and offset 0 everywhere, so values are
// codes.
HostCache raw_cache(const Geometry& g, const std::function<std::uint8_t(int t, int byte)>& fill) {
  HostCache cache = empty_cache(g);
  for (int t = 0; t < g.kv_lens[0]; ++t) {
    for (int is_v = 0; is_v < 2; ++is_v) {
      const SideLayout& side = is_v ? cache.layout.v : cache.layout.k;
      for (int group = 0; group < side.num_groups; ++group) {
        write_group(cache, is_v != 0, 0, 0, t, group, 1.0f, 0.0f, [](int) { return 0; });
      }
      std::uint8_t* block =
          cache.block(cache.pages[0][static_cast<std::size_t>(t / g.page_size)], 0);
      for (int j = 0; j < side.row_bytes; ++j) {
        block[chunk_offset(cache.layout, side, t % g.page_size, j / 16) + j % 16] = fill(t, j);
      }
    }
  }
  return cache;
}

void expect_codes(const TestBackend& backend, const HostCache& cache) {
  const DequantizedRows rows = run_dequantize(backend, cache);
  std::size_t wrong = 0;
  for (int t = 0; t < cache.g.kv_lens[0]; ++t) {
    for (int c = 0; c < cache.g.head_dim; ++c) {
      const auto i = static_cast<std::size_t>(t * cache.g.head_dim + c);
      wrong += rows.k[i] != static_cast<float>(oracle_code(cache, false, 0, 0, t, c));
      wrong += rows.v[i] != static_cast<float>(oracle_code(cache, true, 0, 0, t, c));
    }
  }
  EXPECT_EQ(wrong, 0u) << cache.g.text();
}

Geometry raw_geometry(int bits, int head_dim, int tokens) {
  return {.format = {{bits, QuantAxis::kToken, 64}, {bits, QuantAxis::kToken, 64}, DType::kF32},
          .head_dim = head_dim,
          .page_size = 64,
          .num_qo_heads = 1,
          .num_kv_heads = 1,
          .kv_lens = {tokens}};
}

TEST_P(Append, EverySixteenBitWord) {
  for (int bits : {2, 4}) {
    const int words_per_row = 128 * bits / 16;
    const Geometry g = raw_geometry(bits, 128, 65536 / words_per_row);
    expect_codes(backend(), raw_cache(g, [&](int t, int byte) {
                   const int word = t * words_per_row + byte / 2;
                   return static_cast<std::uint8_t>(byte % 2 == 0 ? word : word >> 8);
                 }));
  }
}

TEST_P(Append, EveryByteInEveryColumn) {
  for (int head_dim : {64, 128, 256}) {
    for (int bits : {2, 4}) {
      expect_codes(backend(), raw_cache(raw_geometry(bits, head_dim, 256), [](int t, int byte) {
                     return static_cast<std::uint8_t>(t + 37 * byte);
                   }));
    }
  }
}

// One-hot queries over single-token requests: the LSE is the code, scaled. Every code in every
// channel.
TEST_P(Cases, H30_EveryCodeReachesItsLogit) {
  for (int head_dim : {64, 128, 256}) {
    for (int bits : {2, 4}) {
      const int levels = 1 << bits;
      Geometry g = raw_geometry(bits, head_dim, 1);
      g.page_size = 4;
      g.num_qo_heads = head_dim;
      g.kv_lens.assign(static_cast<std::size_t>(levels), 1);
      HostCache cache = empty_cache(g);
      for (int b = 0; b < levels; ++b) {
        for (int is_v = 0; is_v < 2; ++is_v) {
          for (int group = 0; group < head_dim / 64; ++group) {
            write_group(cache, is_v != 0, b, 0, 0, group, 1.0f, 0.0f,
                        [&](int c) { return (c + b) % levels; });
          }
        }
      }
      std::vector<float> q = constant_q(g, 0.0f);
      for (int b = 0; b < levels; ++b) {
        for (int h = 0; h < head_dim; ++h) {
          q[(static_cast<std::size_t>(b) * head_dim + h) * static_cast<std::size_t>(head_dim) +
            static_cast<std::size_t>(h)] = 1.0f;
        }
      }
      const Result result = run_decode(backend(), cache, q, {.sm_scale = 0.5});
      const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}));
      for (int b = 0; b < levels; ++b) {
        for (int h = 0; h < head_dim; ++h) {
          const std::size_t row = static_cast<std::size_t>(b) * head_dim + h;
          const double logit = 0.5 * ((h + b) % levels);
          ASSERT_NEAR(result.lse[row], logit, tol.lse * std::max(1.0, logit))
              << "code " << b << " channel " << h;
          for (int c = 0; c < head_dim; ++c) {
            const double code = (c + b) % levels;
            ASSERT_NEAR(result.o[row * head_dim + c], code, tol.o * std::max(1.0, code))
                << b << " " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace foscar::test
