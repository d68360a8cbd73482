// A large paged cache for a benchmark: shuffled pages, filled by the backend's own quantize_append
// from a pool of a few thousand generated rows, so that gigabytes of keys need not
// pass through the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device_arena.h"
#include "foscar/layout/page_layout.h"
#include "foscar/layout/paged_kv.h"

namespace foscar::tool {

struct CacheShape {
  KvFormat format;
  int head_dim;
  int page_size;  // tokens
  int num_kv_heads;
  std::vector<std::int32_t> kv_len;  // [batch_size], tokens
};

struct BenchCache {
  CacheShape shape;
  PageLayout layout{};
  PagedKvCache cache;               // on the arena's device; the table is a block table
  std::int64_t max_pages = 0;       // columns of the block table
  std::vector<std::int32_t> pages;  // the block table, [batch_size, max_pages]

  // Bytes of codes and parameters that attention over all requests must read.
  std::int64_t kv_bytes() const;
};

// Bytes of codes and parameters of one token and KV head, K and V; padding does not count.
std::int64_t token_bytes(const PageLayout& layout);

// Unused bytes of the pool are 0xFF, which reads as NaN parameters.
BenchCache make_bench_cache(DeviceArena& arena, const CacheShape& shape,
                            const std::string& backend);

// Attention of query rows over one (request, KV head), in double precision, from the bytes of the
// pool.
//   q  [num_rows, head_dim]; the result has the same shape
std::vector<double> attend_one(DeviceArena& arena, const BenchCache& cache, std::int64_t request,
                               int kv_head, const std::vector<float>& q);

}  // namespace foscar::tool
