// Pages moved about: the bytes arrive, a decode over them gives the same bits, wrong ids are errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "oracle.h"
#include "spoiled_call.h"

namespace foscar::test {
namespace {

Geometry geometry(int bits) {
  const std::string b = std::to_string(bits);
  return {.format = KvFormat::parse("k" + b + "v" + b + "-token-g32-f16"), .kv_lens = {70, 5}};
}

PagedKvCache host_pool(const Geometry& g, std::vector<std::uint8_t>& bytes, int page_head_bytes) {
  const auto block = static_cast<std::int64_t>(g.num_kv_heads) * page_head_bytes;
  return {.format = g.format,
          .head_dim = g.head_dim,
          .page_size = g.page_size,
          .pool = Tensor::contiguous(
              bytes.data(), DType::kU8,
              {static_cast<std::int64_t>(bytes.size()) / block, g.num_kv_heads, page_head_bytes}),
          .table = {}};
}

// Five pages to the host, the pool overwritten, back to other ids, from a padded pool with heads outermost as well.
TEST_P(Cases, H78_OffloadAndRestoreToOtherPages) {
  for (const int bits : {2, 4}) {
    for (const bool heads_outermost : {false, true}) {
      const Geometry g = geometry(bits);
      const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
      const std::vector<float> q = gaussian_q(g);
      const RunOptions options{.page_padding = heads_outermost ? 0 : 64,
                               .heads_outermost = heads_outermost};
      const Result before = run_decode(backend(), cache, q, options);

      const PlacedCache placed = place_cache(*backend().place, cache, options);
      const auto block = static_cast<std::size_t>(cache.layout.page_head_bytes) * 2;
      std::vector<std::uint8_t> host(block * 7, 0xEE);
      const PagedKvCache away = host_pool(g, host, cache.layout.page_head_bytes);
      std::vector<PageCopy> out;
      for (int i = 0; i < 5; ++i) out.push_back({cache.pages[0][std::size_t(i)], 6 - i});
      copy_pages(placed.cache, away, out);
      placed.pool.download();  // waits for the copies
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(std::memcmp(host.data() + (6 - std::size_t(i)) * block,
                              cache.block(cache.pages[0][std::size_t(i)], 0), block),
                  0);
      }
      EXPECT_TRUE(std::all_of(host.begin(), host.begin() + std::ptrdiff_t(2 * block),
                              [](int x) { return x == 0xEE; }));

      HostCache other =
          empty_cache(g, 99);  // the same request in other pages, all of them poisoned
      std::copy_n(cache.block(cache.pages[1][0], 0), block, other.block(other.pages[1][0], 0));
      const PlacedCache target = place_cache(*backend().place, other, {});
      std::vector<PageCopy> back;
      for (int i = 0; i < 5; ++i) back.push_back({6 - i, other.pages[0][std::size_t(i)]});
      copy_pages(away, target.cache, back);
      other.pool = target.pool.download();
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(std::memcmp(other.block(other.pages[0][std::size_t(i)], 0),
                              cache.block(cache.pages[0][std::size_t(i)], 0), block),
                  0);
      }
      EXPECT_TRUE(same_bits(run_decode(backend(), other, q), before));
    }
  }
}

// Requests as beams: reorder, crop, repeat, select; V is the number of the request, so a mix-up shows.
TEST_P(Cases, H70_ReorderCropRepeatSelect) {
  Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"), .kv_lens = {40, 40, 40, 40}};
  HostCache cache = make_cache(g, constant_rows(0.0f), [](int b, int, int, std::span<float> row) {
    std::fill(row.begin(), row.end(), static_cast<float>(b));
  });
  const std::vector<std::uint8_t> original = cache.pool;
  RequestPages requests{cache.pages, {40, 40, 40, 40}};
  std::vector<std::int32_t> unused(static_cast<std::size_t>(cache.num_pages));
  std::iota(unused.begin(), unused.end(), 0);
  for (const auto& row : cache.pages) {
    for (const std::int32_t page : row) std::erase(unused, page);
  }
  ASSERT_EQ(unused.size(), 3u);

  const auto apply = [&](const std::vector<int>& parents) {
    const ReorderPlan plan = plan_reorder(requests, parents, unused, g.page_size);
    const PagedKvCache pool = host_pool(g, cache.pool, cache.layout.page_head_bytes);
    copy_pages(pool, pool, plan.copies);
    unused.erase(unused.begin(), unused.begin() + std::ptrdiff_t(plan.copies.size()));
    unused.insert(unused.end(), plan.released.begin(), plan.released.end());
    requests = plan.requests;
    return plan;
  };
  const auto expect_values = [&](const std::vector<float>& right) {
    cache.g.kv_lens.assign(requests.kv_len.begin(), requests.kv_len.end());
    cache.pages = requests.pages;
    const Result r = run_decode(backend(), cache, gaussian_q(cache.g));
    for (std::size_t b = 0; b < right.size(); ++b) {
      EXPECT_NEAR(r.o[b * 8 * 128], right[b], 1e-5f) << b;
    }
  };
  const ReorderPlan first = apply({2, 0, 0, 3});
  EXPECT_EQ(first.copies.size(), 1u);    // one further child of request 0: one partly filled page
  EXPECT_EQ(first.released.size(), 3u);  // request 1's
  EXPECT_EQ(requests.pages[1][0], requests.pages[2][0]);  // full pages are shared
  EXPECT_NE(requests.pages[1][2], requests.pages[2][2]);
  expect_values({2, 0, 0, 3});
  for (std::size_t b = 0; b < 4; ++b) {
    const int from[] = {2, 0, 0, 3};
    const HostCache old = make_cache(g, constant_rows(0.0f), constant_rows(0.0f));
    // Bytes equal those gathered from the original, never requantized.
    const auto block = static_cast<std::size_t>(cache.layout.page_head_bytes) * 2;
    for (std::size_t p = 0; p < 3; ++p) {
      EXPECT_EQ(
          std::memcmp(cache.block(requests.pages[b][p], 0),
                      original.data() + std::size_t(old.pages[std::size_t(from[b])][p]) * block,
                      block),
          0);
    }
  }

  // Request 0 (page size 16): 40 -> 35 stays in its third page, -> 32 gives it back.
  EXPECT_TRUE(truncate_request(requests, 0, 35, 16).empty());
  EXPECT_EQ(truncate_request(requests, 0, 32, 16).size(), 1u);
  // Requests 1 and 2 share their first two pages: cut inside them is an error, at their end is not.
  EXPECT_THROW(truncate_request(requests, 1, 20, 16), Error);
  EXPECT_EQ(truncate_request(requests, 1, 32, 16).size(), 1u);
  expect_values({2, 0, 0, 3});

  apply({3, 1});
  expect_values({3, 0});
  EXPECT_THROW(plan_reorder(requests, std::vector<int>{0, 0}, {}, 16),
               Error);  // no page for the copy
  EXPECT_THROW(plan_reorder(requests, std::vector<int>{2}, {}, 16), Error);
}

TEST(PageErrors, NameTheArgument) {
  Call c;
  Call d;
  const auto message = [&](const std::vector<PageCopy>& copies) -> std::string {
    try {
      copy_pages(c.params.cache, d.params.cache, copies);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const std::string pages = std::to_string(c.host.num_pages - 1);
  EXPECT_EQ(message({{0, 1}, {-1, 2}}),
            "copies[1]: got source page -1, allowed 0 .. " + pages + ", the pages of its pool");
  EXPECT_EQ(message({{0, 600}}), "copies[0]: got destination page 600, allowed 0 .. " + pages +
                                     ", the pages of its pool");
  EXPECT_EQ(message({{0, 1}, {2, 1}}),
            "copies[1]: got destination page 1 again, allowed every destination once");
  EXPECT_EQ(message({{0, 1}, {1, 0}}), "");  // two pools: a swap is fine
  d.params.cache.pool = c.params.cache.pool;
  EXPECT_NE(message({{0, 1}, {1, 2}}).find("also a source"), std::string::npos);
  d.params.cache.format = KvFormat::parse("k2v2-token-g128-f16");
  EXPECT_EQ(message({}).rfind("to: got k2v2-token-g128-f16", 0), 0u) << message({});
}

}  // namespace
}  // namespace foscar::test
