// The bytes of docs/format.md, typed by hand there and here, against every backend's writer and
// reader. A backend that packs and unpacks in a wrong order of its own passes a round trip; it does
// not pass this.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "oracle.h"

namespace foscar::test {
namespace {

// One page of k4v2-token-g32-f16: head_dim 64, page_size 2, one KV head; 128 bytes.
// clang-format off
constexpr std::uint8_t kGoldenPage[128] = {
    // K codes: chunk 0 of token 0, chunk 0 of token 1, chunk 1 of token 0, chunk 1 of token 1
    0x00, 0x01, 0x12, 0x13, 0x24, 0x25, 0x36, 0x37, 0x48, 0x49, 0x5A, 0x5B, 0x6C, 0x6D, 0x7E, 0x7F,
    0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0,
    0x80, 0x81, 0x92, 0x93, 0xA4, 0xA5, 0xB6, 0xB7, 0xC8, 0xC9, 0xDA, 0xDB, 0xEC, 0xED, 0xFE, 0xFF,
    0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0, 0x00, 0xF0,
    // V codes: token 0, token 1
    0xE4, 0x39, 0x4E, 0x93, 0xE4, 0x39, 0x4E, 0x93, 0xE4, 0x39, 0x4E, 0x93, 0xE4, 0x39, 0x4E, 0x93,
    0x0C, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0x0F, 0xCF,
    // parameters: token 0, token 1, each K group 0, K group 1, V group 0, V group 1
    0x00, 0x3C, 0x00, 0x00, 0x00, 0x38, 0x00, 0xC0, 0x00, 0x3C, 0x00, 0x00, 0x00, 0x40, 0x00, 0x49,
    0x00, 0x3C, 0x00, 0x42, 0x66, 0x32, 0x00, 0xBC, 0x00, 0x38, 0x00, 0xBC, 0x00, 0x50, 0x00, 0x00,
};
// clang-format on

Geometry golden_geometry() {
  return {.format = KvFormat::parse("k4v2-token-g32-f16"),
          .head_dim = 64,
          .page_size = 2,
          .num_qo_heads = 1,
          .num_kv_heads = 1,
          .kv_lens = {2}};
}

float golden_k(int t, int c) {
  if (t == 0)
    return c < 32 ? static_cast<float>(c % 16) : static_cast<float>((c - 32) / 2) * 0.5f - 2.0f;
  return c < 32 ? 3.0f : (c % 2 == 0 ? -1.0f : 2.0f);
}

float golden_v(int t, int c) {
  const auto code = static_cast<float>((c + c / 16) % 4);
  if (t == 0) return c < 32 ? code : 2.0f * code + 10.0f;
  if (c < 32) return c == 0 ? -1.0f : 0.5f;
  return c == 63 ? 96.0f : 0.0f;
}

TEST_P(Append, GoldenPage) {
  HostCache cache = empty_cache(golden_geometry());
  ASSERT_EQ(cache.layout.page_head_bytes, 128);
  AppendInput input;
  for (int t = 0; t < 2; ++t) {
    for (int c = 0; c < 64; ++c) {
      input.k.push_back(golden_k(t, c));
      input.v.push_back(golden_v(t, c));
    }
  }
  input.slots = all_slots(cache);
  for (DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16}) {  // every value is exact in all three
    input.dtype = dtype;
    cache.pool = run_append(backend(), empty_cache(golden_geometry()), input);
    const std::uint8_t* page = cache.block(cache.pages[0][0], 0);
    for (int i = 0; i < 128; ++i) EXPECT_EQ(page[i], kGoldenPage[i]) << "byte " << i;
  }
}

TEST_P(Append, GoldenPageReadsBack) {
  HostCache cache = empty_cache(golden_geometry());
  std::copy_n(kGoldenPage, 128, cache.block(cache.pages[0][0], 0));
  const DequantizedRows rows = run_dequantize(backend(), cache);
  for (int t = 0; t < 2; ++t) {
    for (int c = 0; c < 64; ++c) {
      const std::size_t i = static_cast<std::size_t>(t * 64 + c);
      // 0.2 is not an FP16 number: its neighbour 0.199951171875 times 15, minus 1, is what the page
      // holds.
      const float k = t == 1 && c >= 32 && c % 2 == 1 ? 1.999267578125f : golden_k(t, c);
      EXPECT_EQ(rows.k[i], k) << "k " << t << " " << c;
      EXPECT_EQ(rows.v[i], golden_v(t, c)) << "v " << t << " " << c;
    }
  }
}

// Codes that count up through the channels, the two rows most formats would show first.
TEST_P(Cases, H33_GoldenRows) {
  for (int bits : {2, 4}) {
    Geometry g = golden_geometry();
    g.format = {{bits, QuantAxis::kToken, 32}, {bits, QuantAxis::kToken, 32}, DType::kF32};
    g.page_size = 1;
    g.kv_lens = {1};
    const int levels = 1 << bits;
    const auto ramp = [levels](int, int, int, std::span<float> row) {
      for (std::size_t c = 0; c < row.size(); ++c)
        row[c] = static_cast<float>(c % static_cast<std::size_t>(levels));
    };
    HostCache cache = empty_cache(g);
    cache.pool =
        run_append(backend(), cache,
                   {.k = all_rows(g, ramp), .v = all_rows(g, ramp), .slots = all_slots(cache)});
    const std::uint8_t* row = cache.block(cache.pages[0][0], 0);
    const std::vector<std::uint8_t> golden =
        bits == 2 ? std::vector<std::uint8_t>{0x00, 0x55, 0xAA, 0xFF, 0x00, 0x55, 0xAA, 0xFF,
                                              0x00, 0x55, 0xAA, 0xFF, 0x00, 0x55, 0xAA, 0xFF}
                  : std::vector<std::uint8_t>{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                              0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF};
    for (int i = 0; i < 64 * bits / 8; ++i) {
      EXPECT_EQ(row[i], golden[static_cast<std::size_t>(i % 16)]) << bits << " bits, K byte " << i;
      EXPECT_EQ(row[64 * bits / 8 + i], golden[static_cast<std::size_t>(i % 16)])
          << bits << " bits, V byte " << i;
    }
  }
}

// Decoding the golden page: with q = 0 both tokens weigh the same.
TEST_P(Decode, GoldenPage) {
  HostCache cache = empty_cache(golden_geometry());
  std::copy_n(kGoldenPage, 128, cache.block(cache.pages[0][0], 0));
  const Result result = run_decode(backend(), cache, constant_q(cache.g, 0.0f));
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), cache.g, {}));
  for (int c = 0; c < 64; ++c) {
    const double mean = (golden_v(0, c) + golden_v(1, c)) / 2.0;
    EXPECT_NEAR(result.o[static_cast<std::size_t>(c)], mean,
                tol.o * std::max(1.0, std::abs(mean)) * 4)
        << c;
  }
  EXPECT_NEAR(result.lse[0], std::log(2.0), tol.lse);
}

}  // namespace
}  // namespace foscar::test
