// quantize_append and dequantize of every backend: the same bytes as the reference, whatever the
// input.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const TestBackend& reference() {
  static const TestBackend backend{"reference", &cpu_place()};
  return backend;
}

AppendInput input_of(const HostCache& cache, const RowFn& k, const RowFn& v) {
  return {.k = all_rows(cache.g, k), .v = all_rows(cache.g, v), .slots = all_slots(cache)};
}

// One group of each kind per row: ordinary, flat, all zero, tiny range, huge, denormal, and NaN or
// infinite ones.
RowFn difficult_rows(unsigned seed) {
  return [gauss = gaussian_rows(seed)](int b, int head, int t, std::span<float> row) {
    gauss(b, head, t, row);
    for (std::size_t begin = 0, kind = static_cast<std::size_t>(t); begin < row.size();
         begin += 32, ++kind) {
      const auto group = row.subspan(begin, 32);
      switch (kind % 12) {
        case 0: std::fill(group.begin(), group.end(), 100.0f); break;
        case 1: std::fill(group.begin(), group.end(), kind % 24 < 12 ? 0.0f : -0.0f); break;
        case 2:
          for (float& x : group) x = 5.0f + 1e-6f * x;
          break;
        case 3:
          for (float& x : group) x *= 1e30f;
          break;
        case 4:
          for (float& x : group) x *= 1e-40f;
          break;
        case 5: group[7] = kNaN; break;
        case 6: group[31] = kInfinity; break;
        case 7: group[0] = -kInfinity; break;
        case 8:
          for (float& x : group) x *= 1e38f;
          break;
        case 9:
          std::fill(group.begin(), group.end(), 0.0f);
          group[3] = -0.0f;
          group[9] = 1e-30f;
          break;
        default: break;  // ordinary
      }
    }
  };
}

TEST_P(Append, BytesEqualTheReferences) {
  for (const char* bits : {"k2v2", "k4v4", "k4v2", "k2v4"}) {
    for (int head_dim : {64, 128, 256}) {
      for (int group : {32, 64, 128, 256}) {
        if (group > head_dim) continue;
        for (const char* params : {"f32", "f16", "bf16"}) {
          const int page_size =
              1 << (head_dim / 64 + group / 64) % 9;  // 2 .. 128, another one for each size
          const Geometry g{.format = KvFormat::parse(std::string(bits) + "-token-g" +
                                                     std::to_string(group) + "-" + params),
                           .head_dim = head_dim,
                           .page_size = page_size,
                           .num_qo_heads = 2,
                           .num_kv_heads = 2,
                           .kv_lens = {13, 24}};
          const HostCache cache = empty_cache(g);
          AppendInput input = input_of(cache, difficult_rows(1), difficult_rows(2));
          for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
            input.dtype = dtype;
            ASSERT_EQ(run_append(backend(), cache, input), run_append(reference(), cache, input))
                << g.text() << " from " << dtype_name(dtype);
          }
        }
      }
    }
  }
}

TEST_P(Append, DequantizedBitsEqualTheReferences) {
  for (const char* name : {"k2v2-token-g32-f32", "k4v4-token-g64-f16", "k4v2-token-g32-bf16"}) {
    for (int head_dim : {64, 128, 256}) {
      for (int page_size : {1, 16, 256}) {
        const Geometry g{.format = KvFormat::parse(name),
                         .head_dim = head_dim,
                         .page_size = page_size,
                         .num_qo_heads = 3,
                         .num_kv_heads = 3,
                         .kv_lens = {19, 0, 40}};
        const HostCache cache = make_cache(g, difficult_rows(3), difficult_rows(4));
        for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
          for (bool csr : {false, true}) {
            const DequantizedRows got = run_dequantize(backend(), cache, dtype, {.csr = csr});
            const DequantizedRows want = run_dequantize(reference(), cache, dtype);
            // NaN payloads are nobody's business; everything else is compared bit by bit.
            const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
              return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
                return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
                       (std::isnan(x) && std::isnan(y));
              });
            };
            EXPECT_TRUE(same(got.k, want.k)) << g.text();
            EXPECT_TRUE(same(got.v, want.v)) << g.text();
          }
        }
      }
    }
  }
}

TEST_P(Append, TouchesOnlyItsOwnSlots) {
  const Geometry g{
      .format = KvFormat::parse("k4v2-token-g32-f16"), .page_size = 4, .kv_lens = {11, 6}};
  const HostCache before = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  AppendInput input{.k = {}, .v = {}, .slots = {}};
  // Token 5 of request 0 anew, and two entries of padding that must write nothing.
  const std::int64_t slot = all_slots(before)[5];
  input.slots = {-1, slot, std::numeric_limits<std::int64_t>::min()};
  input.k.assign(3 * 2 * 128, 8.0f);
  input.v.assign(3 * 2 * 128, 9.0f);
  HostCache after = before;
  after.pool = run_append(backend(), before, input);
  for (int b = 0; b < 2; ++b) {
    for (int t = 0; t < g.kv_lens[static_cast<std::size_t>(b)]; ++t) {
      for (int c = 0; c < 128; ++c) {
        const bool rewritten = b == 0 && t == 5;
        EXPECT_EQ(oracle_value(after, false, b, 1, t, c),
                  rewritten ? 8.0 : oracle_value(before, false, b, 1, t, c));
        EXPECT_EQ(oracle_value(after, true, b, 1, t, c),
                  rewritten ? 9.0 : oracle_value(before, true, b, 1, t, c));
      }
    }
  }
  // Put the old token back: every byte of the pool, poison included, is as before.
  AppendInput restore{.k = {}, .v = {}, .slots = {slot}};
  for (int head = 0; head < 2; ++head) {
    std::vector<float> row(128);
    gaussian_rows(1)(0, head, 5, row);
    restore.k.insert(restore.k.end(), row.begin(), row.end());
    gaussian_rows(2)(0, head, 5, row);
    restore.v.insert(restore.v.end(), row.begin(), row.end());
  }
  EXPECT_EQ(run_append(backend(), after, restore), before.pool);
}

TEST_P(Append, SlotWidthsAgree) {
  const Geometry g{.page_size = 8, .kv_lens = {21}};
  const HostCache cache = empty_cache(g);
  AppendInput input = input_of(cache, gaussian_rows(1), gaussian_rows(2));
  const std::vector<std::uint8_t> wide = run_append(backend(), cache, input);
  input.slots_are_32bit = true;
  EXPECT_EQ(run_append(backend(), cache, input), wide);
}

}  // namespace
}  // namespace foscar::test
