// See problem.h.
#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace foscar::test {
namespace {

// One N(0, 1) number for an index, the same on every platform.
float gaussian(std::uint64_t index) {
  const auto mix = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const auto uniform = [](std::uint64_t bits) {
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(mix(2 * index))));
  return static_cast<float>(radius * std::cos(6.283185307179586 * uniform(mix(2 * index + 1))));
}

std::uint64_t row_index(unsigned seed, int b, int head, int t) {
  return ((static_cast<std::uint64_t>(seed) * 1009 + static_cast<std::uint64_t>(b)) * 257 +
          static_cast<std::uint64_t>(head)) *
             1000003 +
         static_cast<std::uint64_t>(t);
}

}  // namespace

std::string Geometry::text() const {
  std::string lens;
  for (int len : kv_lens) lens.append(lens.empty() ? "" : ",").append(std::to_string(len));
  return format.name() + " D=" + std::to_string(head_dim) + " P=" + std::to_string(page_size) +
         " Hq=" + std::to_string(num_qo_heads) + " Hk=" + std::to_string(num_kv_heads) +
         " qo_len=" + std::to_string(qo_len) + " q=" + std::string(dtype_name(q_dtype)) + " L=[" +
         lens.substr(0, 60) + "]";
}

RowFn constant_rows(float value) {
  return [value](int, int, int, std::span<float> row) { std::fill(row.begin(), row.end(), value); };
}

RowFn token_index_rows() {
  return [](int, int, int t, std::span<float> row) {
    std::fill(row.begin(), row.end(), static_cast<float>(t));
  };
}

RowFn gaussian_rows(unsigned seed) {
  return [seed](int b, int head, int t, std::span<float> row) {
    const std::uint64_t base = row_index(seed, b, head, t) * 512;
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = gaussian(base + c);
  };
}

std::uint8_t* HostCache::block(int page, int head) {
  return pool.data() +
         (static_cast<std::int64_t>(page) * g.num_kv_heads + head) * layout.page_head_bytes;
}
const std::uint8_t* HostCache::block(int page, int head) const {
  return const_cast<HostCache*>(this)->block(page, head);
}

HostCache empty_cache(const Geometry& g, unsigned seed) {
  HostCache cache;
  cache.g = g;
  cache.layout = make_page_layout(g.format, g.head_dim, g.page_size);
  int used = 0;
  for (int len : g.kv_lens) used += (len + g.page_size - 1) / g.page_size;
  cache.num_pages = used + 3;
  cache.pool.assign(
      static_cast<std::size_t>(pool_bytes(cache.layout, cache.num_pages, g.num_kv_heads)), 0xFF);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(cache.num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  auto next = ids.begin();
  for (int len : g.kv_lens) {
    const auto count = (len + g.page_size - 1) / g.page_size;
    cache.pages.emplace_back(next, next + count);
    next += count;
  }
  return cache;
}

std::vector<std::int64_t> all_slots(const HostCache& cache) {
  std::vector<std::int64_t> slots;
  for (int b = 0; b < cache.g.batch_size(); ++b) {
    for (int t = 0; t < cache.g.kv_lens[static_cast<std::size_t>(b)]; ++t) {
      const std::int64_t page =
          cache.pages[static_cast<std::size_t>(b)][static_cast<std::size_t>(t / cache.g.page_size)];
      slots.push_back(page * cache.g.page_size + t % cache.g.page_size);
    }
  }
  return slots;
}

std::vector<float> all_rows(const Geometry& g, const RowFn& fill) {
  std::vector<float> rows;
  for (int b = 0; b < g.batch_size(); ++b) {
    for (int t = 0; t < g.kv_lens[static_cast<std::size_t>(b)]; ++t) {
      for (int head = 0; head < g.num_kv_heads; ++head) {
        rows.resize(rows.size() + static_cast<std::size_t>(g.head_dim));
        fill(b, head, t, std::span(rows).last(static_cast<std::size_t>(g.head_dim)));
      }
    }
  }
  return rows;
}

HostCache make_cache(const Geometry& g, const RowFn& k, const RowFn& v, unsigned seed) {
  HostCache cache = empty_cache(g, seed);
  std::vector<float> k_rows = all_rows(g, k), v_rows = all_rows(g, v);
  std::vector<std::int64_t> slots = all_slots(cache);
  const auto tokens = static_cast<std::int64_t>(slots.size());
  const PagedKvCache paged{
      .format = g.format,
      .head_dim = g.head_dim,
      .page_size = g.page_size,
      .pool = Tensor::contiguous(cache.pool.data(), DType::kU8,
                                 {cache.num_pages, g.num_kv_heads, cache.layout.page_head_bytes}),
      .table = {}};
  quantize_append(
      Tensor::contiguous(k_rows.data(), DType::kF32, {tokens, g.num_kv_heads, g.head_dim}),
      Tensor::contiguous(v_rows.data(), DType::kF32, {tokens, g.num_kv_heads, g.head_dim}),
      Tensor::contiguous(slots.data(), DType::kI64, {tokens}), paged, {.backend = "reference"});
  return cache;
}

void write_group(HostCache& cache, bool is_v, int b, int head, int t, int group, float scale,
                 float offset, const std::function<int(int channel)>& code) {
  const PageLayout& layout = cache.layout;
  const SideLayout& side = is_v ? layout.v : layout.k;
  const int page =
      cache.pages[static_cast<std::size_t>(b)][static_cast<std::size_t>(t / layout.page_size)];
  const int slot = t % layout.page_size;
  std::uint8_t* block = cache.block(page, head);
  const int first = group * side.group_size;
  std::uint8_t* pair = block + params_offset(layout, side, slot, first);
  store_from_float(pair, 0, layout.param_dtype, scale);
  store_from_float(pair, 1, layout.param_dtype, offset);
  for (int c = first; c < first + side.group_size; ++c) {
    std::uint8_t& byte = block[code_offset(layout, side, slot, c)];
    const int shift = code_position(c, layout.head_dim, side.bits).shift;
    byte = static_cast<std::uint8_t>((byte & ~(max_code(side.bits) << shift)) | (code(c) << shift));
  }
}

std::vector<float> gaussian_q(const Geometry& g, unsigned seed) {
  const std::size_t count =
      static_cast<std::size_t>(g.batch_size()) * g.qo_len * g.num_qo_heads * g.head_dim;
  std::vector<float> q(count);
  for (std::size_t i = 0; i < count; ++i) q[i] = gaussian(row_index(seed + 77, 0, 0, 0) * 512 + i);
  return to_floats(to_bytes(q, g.q_dtype), g.q_dtype);
}

std::vector<float> constant_q(const Geometry& g, float value) {
  return std::vector<float>(gaussian_q(g).size(), value);
}

std::vector<std::uint8_t> to_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint8_t> bytes(values.size() * static_cast<std::size_t>(dtype_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_from_float(bytes.data(), static_cast<std::int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

std::vector<float> to_floats(const std::vector<std::uint8_t>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(dtype_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_as_float(bytes.data(), static_cast<std::int64_t>(i), dtype);
  }
  return values;
}

}  // namespace foscar::test
