#include "bench_cache.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "foscar/append.h"
#include "foscar/error.h"

namespace foscar::tool {
namespace {

constexpr std::int64_t kGeneratedRows = 2048;  // tokens
constexpr std::uint32_t kSeed = 11;
constexpr std::uint8_t kPoison = 0xff;
constexpr std::int32_t kNoPage = 0x7fffffff;

std::int64_t pages_of(std::int64_t tokens, int page_size) {
  return (tokens + page_size - 1) / page_size;
}

// Gaussian rows [kGeneratedRows, num_heads, head_dim] around a mean per channel, BF16.
HostTensor generate_rows(std::int64_t num_heads, std::int64_t head_dim, float mean_sigma,
                         std::mt19937& random) {
  HostTensor rows = HostTensor::filled(DType::kBF16, {kGeneratedRows, num_heads, head_dim});
  std::normal_distribution<float> normal;
  std::vector<float> means(static_cast<std::size_t>(num_heads * head_dim));
  for (float& mean : means) mean = mean_sigma * normal(random);
  for (std::int64_t i = 0; i < rows.numel(); ++i) {
    rows.set(i, means[static_cast<std::size_t>(i) % means.size()] + normal(random));
  }
  return rows;
}

// Elements `begin` .. `begin + count` of the outermost dimension.
Tensor slice(Tensor tensor, std::int64_t begin, std::int64_t count) {
  tensor.data = static_cast<std::uint8_t*>(tensor.data) +
                begin * tensor.strides[0] * dtype_bytes(tensor.dtype);
  tensor.shape[0] = count;
  return tensor;
}

void fill(DeviceArena& arena, BenchCache& bench, const std::string& backend) {
  const CacheShape& shape = bench.shape;
  std::vector<std::int64_t> slots;
  for (std::size_t b = 0; b < shape.kv_len.size(); ++b) {
    const std::int32_t* row = &bench.pages[b * static_cast<std::size_t>(bench.max_pages)];
    for (std::int64_t t = 0; t < shape.kv_len[b]; ++t) {
      slots.push_back(std::int64_t{row[t / shape.page_size]} * shape.page_size +
                      t % shape.page_size);
    }
  }
  const auto num_slots = static_cast<std::int64_t>(slots.size());
  const Tensor mapping = arena.allocate(DType::kI64, {std::max<std::int64_t>(num_slots, 1)}, 0);
  arena.copy_from_host(mapping, slots.data(), num_slots * std::int64_t{sizeof(slots[0])});
  std::mt19937 random(kSeed);
  const Tensor k = arena.upload(generate_rows(shape.num_kv_heads, shape.head_dim, 1.0f, random));
  const Tensor v = arena.upload(generate_rows(shape.num_kv_heads, shape.head_dim, 0.5f, random));
  for (std::int64_t begin = 0; begin < num_slots; begin += kGeneratedRows) {
    const std::int64_t count = std::min(kGeneratedRows, num_slots - begin);
    quantize_append(slice(k, 0, count), slice(v, 0, count), slice(mapping, begin, count),
                    bench.cache, {.backend = backend});
  }
}

// One side's values of one slot of a block in host memory.
void read_row(const std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
              std::vector<double>& row) {
  for (int begin = 0; begin < layout.head_dim; begin += side.group_size) {
    const std::uint8_t* pair = block + params_offset(layout, side, slot, begin);
    const double scale = load_as_float(pair, 0, layout.param_dtype);
    const double offset = load_as_float(pair, 1, layout.param_dtype);
    for (int c = begin; c < begin + side.group_size; ++c) {
      const int shift = code_position(c, layout.head_dim, side.bits).shift;
      const int code = extract_code(block[code_offset(layout, side, slot, c)], shift, side.bits);
      row[static_cast<std::size_t>(c)] = scale * code + offset;
    }
  }
}

}  // namespace

std::int64_t token_bytes(const PageLayout& layout) {
  return layout.k.row_bytes + layout.v.row_bytes +
         (layout.k.num_groups + layout.v.num_groups) * layout.pair_bytes();
}

std::int64_t BenchCache::kv_bytes() const {
  const std::int64_t tokens =
      std::accumulate(shape.kv_len.begin(), shape.kv_len.end(), std::int64_t{0});
  return tokens * shape.num_kv_heads * token_bytes(layout);
}

BenchCache make_bench_cache(DeviceArena& arena, const CacheShape& shape,
                            const std::string& backend) {
  const std::string problem = format_problem(shape.format, shape.head_dim, shape.page_size);
  if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem);
  BenchCache bench{.shape = shape,
                   .layout = make_page_layout(shape.format, shape.head_dim, shape.page_size),
                   .cache = {},
                   .pages = {}};
  std::int64_t num_pages = 0;
  for (const std::int32_t length : shape.kv_len) {
    num_pages += pages_of(length, shape.page_size);
    bench.max_pages = std::max(bench.max_pages, pages_of(length, shape.page_size));
  }
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(kSeed));
  const auto batch_size = static_cast<std::int64_t>(shape.kv_len.size());
  bench.pages.assign(static_cast<std::size_t>(batch_size * bench.max_pages), kNoPage);
  auto next = ids.begin();
  for (std::int64_t b = 0; b < batch_size; ++b) {
    const std::int64_t count = pages_of(shape.kv_len[static_cast<std::size_t>(b)], shape.page_size);
    std::copy_n(next, count, bench.pages.begin() + b * bench.max_pages);
    next += count;
  }

  PagedKvCache& cache = bench.cache;
  cache.format = shape.format;
  cache.head_dim = shape.head_dim;
  cache.page_size = shape.page_size;
  cache.pool = arena.allocate(
      DType::kU8, {num_pages, shape.num_kv_heads, bench.layout.page_head_bytes}, kPoison);
  const auto upload = [&arena](const std::vector<std::int32_t>& values,
                               std::vector<std::int64_t> extents) {
    const Tensor tensor = arena.allocate(DType::kI32, extents, 0);
    arena.copy_from_host(tensor, values.data(),
                         static_cast<std::int64_t>(values.size() * sizeof(values[0])));
    return tensor;
  };
  cache.table.block_table = upload(bench.pages, {batch_size, bench.max_pages});
  cache.table.kv_len = upload(shape.kv_len, {batch_size});
  fill(arena, bench, backend);
  return bench;
}

std::vector<double> attend_one(DeviceArena& arena, const BenchCache& bench, std::int64_t request,
                               int kv_head, const std::vector<float>& q) {
  const PageLayout& layout = bench.layout;
  const auto head_dim = static_cast<std::size_t>(layout.head_dim);
  const std::size_t num_rows = q.size() / head_dim;
  const double sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const std::int64_t kv_len = bench.shape.kv_len[static_cast<std::size_t>(request)];
  const Tensor& pool = bench.cache.pool;
  std::vector<std::uint8_t> block(static_cast<std::size_t>(layout.page_head_bytes));
  std::vector<double> k(head_dim), v(head_dim);
  std::vector<double> largest(num_rows, -INFINITY), sum(num_rows, 0.0), o(q.size(), 0.0);
  for (std::int64_t t = 0; t < kv_len; ++t) {
    const int slot = static_cast<int>(t % layout.page_size);
    if (slot == 0) {
      const std::int64_t page =
          bench.pages[static_cast<std::size_t>(request * bench.max_pages + t / layout.page_size)];
      Tensor source = pool;
      source.data = static_cast<std::uint8_t*>(pool.data) + page * pool.strides[0] +
                    kv_head * pool.strides[1];
      arena.copy_to_host(block.data(), source, layout.page_head_bytes);
    }
    read_row(block.data(), layout, layout.k, slot, k);
    read_row(block.data(), layout, layout.v, slot, v);
    for (std::size_t r = 0; r < num_rows; ++r) {
      double logit = 0;
      for (std::size_t c = 0; c < head_dim; ++c) logit += double{q[r * head_dim + c]} * k[c];
      logit *= sm_scale;
      double* row = &o[r * head_dim];
      if (logit > largest[r]) {  // a new maximum rescales what there is
        const double factor = std::exp(largest[r] - logit);
        largest[r] = logit;
        sum[r] *= factor;
        for (std::size_t c = 0; c < head_dim; ++c) row[c] *= factor;
      }
      const double weight = std::exp(logit - largest[r]);
      sum[r] += weight;
      for (std::size_t c = 0; c < head_dim; ++c) row[c] += weight * v[c];
    }
  }
  for (std::size_t i = 0; i < o.size(); ++i) {
    if (kv_len > 0) o[i] /= sum[i / head_dim];
  }
  return o;
}

}  // namespace foscar::tool
