// Problems for the tests: geometry, a cache filled row by row, queries. Unused slots and pages are
// always poisoned with 0xFF bytes: codes all ones, scales NaN in every parameter type. run.h runs
// backends on them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "foscar/foscar.h"

namespace foscar::test {

struct Geometry {
  KvFormat format = KvFormat::parse("k2v2-token-g128-f32");
  int head_dim = 128;
  int page_size = 16;
  int num_qo_heads = 8;
  int num_kv_heads = 2;
  int qo_len = 1;
  std::vector<int> kv_lens;  // tokens per request
  DType q_dtype = DType::kBF16;

  int batch_size() const { return static_cast<int>(kv_lens.size()); }
  int gqa_group_size() const { return num_qo_heads / num_kv_heads; }
  std::string text() const;  // for failure messages
};

// Fills one row [head_dim] of K or V for (request, KV head, token).
using RowFn = std::function<void(int b, int head, int t, std::span<float> row)>;
RowFn constant_rows(float value);
RowFn token_index_rows();            // every channel is t
RowFn gaussian_rows(unsigned seed);  // N(0, 1)

struct HostCache {
  Geometry g;
  PageLayout layout{};
  int num_pages = 0;
  std::vector<std::uint8_t> pool;  // compact [num_pages, num_kv_heads, page_head_bytes]
  std::vector<std::vector<std::int32_t>> pages;  // of each request, in order

  std::uint8_t* block(int page, int head);
  const std::uint8_t* block(int page, int head) const;
};

// Shuffled page ids with unused pages among them, no row written.
HostCache empty_cache(const Geometry& g, unsigned seed = 5);
// The same, filled through quantize_append of the reference backend.
HostCache make_cache(const Geometry& g, const RowFn& k, const RowFn& v, unsigned seed = 5);
// Slots of all tokens of all requests, in order; matches rows laid out by all_rows().
std::vector<std::int64_t> all_slots(const HostCache& cache);
std::vector<float> all_rows(const Geometry& g,
                            const RowFn& fill);  // [sum kv_lens, num_kv_heads, head_dim]

// Writes a token's codes and parameters directly, the same in every channel of a group.
void write_group(HostCache& cache, bool is_v, int b, int head, int t, int group, float scale,
                 float offset, const std::function<int(int channel)>& code);

// N(0, 1) queries [batch, qo_len, num_qo_heads, head_dim], exact in q_dtype.
std::vector<float> gaussian_q(const Geometry& g, unsigned seed = 0);
std::vector<float> constant_q(const Geometry& g, float value);

// Values in the bytes of `dtype`, rounded, and back.
std::vector<std::uint8_t> to_bytes(const std::vector<float>& values, DType dtype);
std::vector<float> to_floats(const std::vector<std::uint8_t>& bytes, DType dtype);

}  // namespace foscar::test
