// One decode problem of the benchmark: the same keys and values in a BF16 cache and in low-bit
// caches, pages in random order. Values repeat every 4096 tokens, so that building a long cache
// takes seconds; no kernel can profit from that.
#pragma once

#include <string>
#include <vector>

#include "foscar/foscar.h"
#include "memory.h"

namespace foscar::bench {

struct Shape {
  int batch_size = 1;
  int kv_len = 32768;
  int num_qo_heads = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
  int page_size = 64;

  int pages_per_request() const { return (kv_len + page_size - 1) / page_size; }
  int num_pages() const { return batch_size * pages_per_request(); }
};

struct LowBitCache {
  std::string format;
  Buffer pool;
  PagedKvCache view;
  double bytes = 0;  // K, V and parameters that one decode call reads
};

struct Problem {
  Shape shape;
  std::vector<std::int32_t> block_table;  // [batch_size, pages_per_request]
  std::vector<std::int32_t> kv_len;       // [batch_size]
  std::vector<std::uint16_t> q;           // BF16 [batch_size, num_qo_heads, head_dim]
  std::vector<float> o;                   // [batch_size, num_qo_heads, head_dim]
  Buffer dense_k, dense_v;                // BF16 [num_pages, num_kv_heads, page_size, head_dim]
  double dense_bytes = 0;
  std::vector<LowBitCache> caches;

  PageTable table();
  PagedDenseKv dense();
  DecodeParams params(const LowBitCache* cache);
};

Problem make_problem(const Shape& shape, const std::vector<std::string>& formats, bool huge_pages);

}  // namespace foscar::bench
