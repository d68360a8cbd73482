// What lies beyond a request's last token has no influence on a single bit: codes of all ones, NaN
// scales, infinite offsets, whole unused pages, queries of other rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

// Overwrites every slot that no token owns. `fill` gets a block's unused slot.
void fill_unused(HostCache& cache, const std::function<void(std::uint8_t* block, int slot)>& fill) {
  std::vector<std::vector<bool>> used(
      static_cast<std::size_t>(cache.num_pages),
      std::vector<bool>(static_cast<std::size_t>(cache.g.page_size), false));
  for (std::int64_t slot : all_slots(cache)) {
    used[static_cast<std::size_t>(slot / cache.g.page_size)]
        [static_cast<std::size_t>(slot % cache.g.page_size)] = true;
  }
  for (int page = 0; page < cache.num_pages; ++page) {
    for (int slot = 0; slot < cache.g.page_size; ++slot) {
      if (used[static_cast<std::size_t>(page)][static_cast<std::size_t>(slot)]) continue;
      for (int head = 0; head < cache.g.num_kv_heads; ++head) fill(cache.block(page, head), slot);
    }
  }
}

void fill_slot(const PageLayout& layout, std::uint8_t* block, int slot, std::uint8_t code_byte,
               float scale, float offset) {
  for (const SideLayout* side : {&layout.k, &layout.v}) {
    for (int chunk = 0; chunk < side->num_chunks; ++chunk) {
      std::memset(block + chunk_offset(layout, *side, slot, chunk), code_byte, kChunkBytes);
    }
    for (int group = 0; group < side->num_groups; ++group) {
      std::uint8_t* pair = block + params_offset(layout, *side, slot, group * side->group_size);
      store_from_float(pair, 0, layout.param_dtype, scale);
      store_from_float(pair, 1, layout.param_dtype, offset);
    }
  }
}

TEST_P(Cases, H17_UnusedSlotsChangeNoBit) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  struct Shape {
    int page_size, kv_len, head_dim, qo_len;
  };
  for (const char* name : {"k2v2-token-g64-f32", "k4v4-token-g32-f16", "k2v4-token-g64-bf16"}) {
    for (const Shape s : {Shape{4, 13, 64, 1},
                          {64, 1, 64, 1},
                          {16, 65, 128, 1},
                          {256, 100, 256, 1},
                          {1, 70, 128, 1},
                          {64, 70, 128, 3}}) {
      const Geometry g{.format = KvFormat::parse(name),
                       .head_dim = s.head_dim,
                       .page_size = s.page_size,
                       .qo_len = s.qo_len,
                       .kv_lens = {s.kv_len, 0, 2}};
      HostCache clean = make_cache(g, gaussian_rows(1), gaussian_rows(2));
      const std::vector<float> q = gaussian_q(g);
      const Result as_made = run_decode(backend(), clean, q);  // 0xFF everywhere
      fill_unused(clean, [&](std::uint8_t* block, int slot) {
        fill_slot(clean.layout, block, slot, 0, 0.0f, 0.0f);
      });
      const Result zeroed = run_decode(backend(), clean, q);
      EXPECT_TRUE(same_bits(as_made, zeroed)) << g.text();
      for (const auto& [scale, offset] : {std::pair{kNaN, kInf}, std::pair{kInf, -kInf},
                                          std::pair{1e4f, kNaN}, std::pair{-kNaN, 0.0f}}) {
        HostCache poisoned = clean;
        fill_unused(poisoned, [&](std::uint8_t* block, int slot) {
          fill_slot(clean.layout, block, slot, 0xFF, scale, offset);
        });
        EXPECT_TRUE(same_bits(run_decode(backend(), poisoned, q), zeroed)) << g.text();
      }
      for (float x : zeroed.o) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(Cases, H17_DequantizeReadsNoUnusedSlot) {
  const Geometry g{.page_size = 16, .kv_lens = {17, 0, 3}};
  const DequantizedRows rows =
      run_dequantize(backend(), make_cache(g, gaussian_rows(1), gaussian_rows(2)));
  const std::size_t row = 2 * 128;
  for (int b = 0; b < 3; ++b) {
    for (int t = 0; t < 17; ++t) {
      const bool valid = t < g.kv_lens[static_cast<std::size_t>(b)];
      for (std::size_t i = 0; i < row; ++i) {
        const std::size_t at = static_cast<std::size_t>(b * 17 + t) * row + i;
        ASSERT_EQ(std::isnan(rows.k[at]), !valid) << "rows beyond kv_len are left as they were";
        ASSERT_EQ(std::isnan(rows.v[at]), !valid);
      }
    }
  }
}

// Newer tokens that a row does not see may hold anything, like slots that no token owns.
TEST_P(Decode, TokensOfTheFutureChangeNoBit) {
  for (const char* name : {"k2v2-token-g32-f32", "k4v4-token-g128-f32"}) {
    for (int kv_len : {3, 64, 66, 200}) {
      const Geometry g{.format = KvFormat::parse(name), .qo_len = 3, .kv_lens = {kv_len}};
      const auto rows = [kv_len](unsigned seed, bool broken) {
        return [=, gauss = gaussian_rows(seed)](int b, int head, int t, std::span<float> row) {
          gauss(b, head, t, row);
          if (broken && t == kv_len - 1) row[0] = row[127] = std::numeric_limits<float>::infinity();
        };
      };
      const std::vector<float> q = gaussian_q(g);
      const Result clean = run_decode(backend(), make_cache(g, rows(1, false), rows(2, false)), q);
      const Result broken = run_decode(backend(), make_cache(g, rows(1, true), rows(2, true)), q);
      for (std::size_t i = 0; i < 2 * 8 * 128; ++i) {
        ASSERT_EQ(broken.o[i], clean.o[i]) << "row " << i / (8 * 128) << ": " << g.text();
      }
      for (std::size_t i = 2 * 8 * 128; i < broken.o.size(); ++i) {
        ASSERT_TRUE(std::isnan(broken.o[i])) << "the row that sees a NaN key must show it";
      }
    }
  }
}

// A NaN among the values of V makes that group of channels NaN; the other groups keep their
// numbers.
TEST_P(Cases, H22_NaNValuesStayInTheirChannels) {
  const Geometry g{.format = KvFormat::parse("k2v2-token-g32-f32"), .kv_lens = {50}};
  const auto rows = [](int b, int head, int t, std::span<float> row) {
    gaussian_rows(2)(b, head, t, row);
    if (t == 20) row[40] = std::numeric_limits<float>::quiet_NaN();
  };
  const std::vector<float> q = gaussian_q(g);
  const Result broken = run_decode(backend(), make_cache(g, gaussian_rows(1), rows), q);
  const HostCache clean = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  const Oracle oracle = oracle_decode(clean, q);
  const Tolerance tol = tolerance(backend(), output_dtype(backend(), g, {}), oracle.max_logit);
  for (std::size_t row = 0; row < 8; ++row) {
    double error = 0, norm = 0;
    for (std::size_t c = 0; c < 128; ++c) {
      const std::size_t i = row * 128 + c;
      if (c / 32 == 1) {
        ASSERT_TRUE(std::isnan(broken.o[i])) << "channel " << c;
        continue;
      }
      error += (broken.o[i] - oracle.o[i]) * (broken.o[i] - oracle.o[i]);
      norm += oracle.o[i] * oracle.o[i];
    }
    EXPECT_LE(std::sqrt(error / norm), 2 * tol.o);
  }
}

// A NaN query of one request stays with that request.
TEST_P(Decode, ANaNQueryStaysInItsRow) {
  const Geometry g{.kv_lens = {40, 40}};
  const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  std::vector<float> q = gaussian_q(g);
  const Result clean = run_decode(backend(), cache, q);
  q[3 * 128 + 5] = std::numeric_limits<float>::quiet_NaN();  // head 3 of request 0
  const Result result = run_decode(backend(), cache, q);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t c = 0; c < 128; ++c) {
      if (row == 3) {
        ASSERT_TRUE(std::isnan(result.o[row * 128 + c]))
            << "a NaN query must not become a plausible number";
      } else {
        ASSERT_EQ(result.o[row * 128 + c], clean.o[row * 128 + c]) << row;
      }
    }
  }
}

}  // namespace
}  // namespace foscar::test
