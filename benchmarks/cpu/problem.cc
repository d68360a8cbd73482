#include "problem.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace foscar::bench {
namespace {

constexpr int kPeriodTokens = 4096;

}  // namespace

PageTable Problem::table() {
  const int pages = shape.pages_per_request();
  PageTable table;
  table.block_table =
      Tensor::contiguous(block_table.data(), DType::kI32, {shape.batch_size, pages});
  table.kv_len = Tensor::contiguous(kv_len.data(), DType::kI32, {shape.batch_size});
  return table;
}

PagedDenseKv Problem::dense() {
  const auto tensor = [this](const Buffer& b) {
    return Tensor::contiguous(
        b.get(), DType::kBF16,
        {shape.num_pages(), shape.num_kv_heads, shape.page_size, shape.head_dim});
  };
  return {.k = tensor(dense_k), .v = tensor(dense_v), .table = table()};
}

DecodeParams Problem::params(const LowBitCache* cache) {
  DecodeParams p;
  p.q = Tensor::contiguous(q.data(), DType::kBF16,
                           {shape.batch_size, shape.num_qo_heads, shape.head_dim});
  p.o = Tensor::contiguous(o.data(), DType::kF32,
                           {shape.batch_size, shape.num_qo_heads, shape.head_dim});
  if (cache != nullptr) {
    p.cache = cache->view;
    p.cache.table = table();
  }
  return p;
}

Problem make_problem(const Shape& shape, const std::vector<std::string>& formats, bool huge_pages) {
  Problem problem;
  problem.shape = shape;
  const int num_pages = shape.num_pages();
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  problem.block_table.resize(static_cast<std::size_t>(num_pages));
  std::iota(problem.block_table.begin(), problem.block_table.end(), 0);
  std::shuffle(problem.block_table.begin(), problem.block_table.end(), rng);
  problem.kv_len.assign(static_cast<std::size_t>(shape.batch_size), shape.kv_len);
  problem.q.resize(static_cast<std::size_t>(shape.batch_size) * shape.num_qo_heads *
                   shape.head_dim);
  for (std::uint16_t& x : problem.q) x = float_to_bf16(normal(rng));
  problem.o.resize(problem.q.size());

  // Source rows, BF16 [kPeriodTokens, num_kv_heads, head_dim].
  const std::size_t row = static_cast<std::size_t>(shape.num_kv_heads) * shape.head_dim;
  std::vector<std::uint16_t> k(kPeriodTokens * row), v(kPeriodTokens * row);
  for (std::uint16_t& x : k) x = float_to_bf16(normal(rng));
  for (std::uint16_t& x : v) x = float_to_bf16(normal(rng));

  // Page i of every cache holds source tokens first_token(i) and following.
  const int pages_per_period = kPeriodTokens / shape.page_size;
  std::vector<int> logical(static_cast<std::size_t>(num_pages));
  for (int i = 0; i < num_pages; ++i) {
    logical[static_cast<std::size_t>(problem.block_table[static_cast<std::size_t>(i)])] =
        i % shape.pages_per_request();
  }
  const auto source_page = [&](int page) {
    return logical[static_cast<std::size_t>(page)] % pages_per_period;
  };

  const std::size_t dense_page = row * static_cast<std::size_t>(shape.page_size);
  problem.dense_bytes = 2.0 * shape.batch_size * shape.kv_len * static_cast<double>(row) * 2.0;
  for (auto [buffer, source] : {std::pair{&problem.dense_k, &k}, std::pair{&problem.dense_v, &v}}) {
    *buffer = allocate(dense_page * 2 * static_cast<std::size_t>(num_pages), huge_pages);
    auto* out = reinterpret_cast<std::uint16_t*>(buffer->get());
    for (int page = 0; page < num_pages; ++page) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        for (int s = 0; s < shape.page_size; ++s) {
          const std::size_t token =
              static_cast<std::size_t>(source_page(page)) * shape.page_size + s;
          std::memcpy(out,
                      source->data() + token * row + static_cast<std::size_t>(h) * shape.head_dim,
                      static_cast<std::size_t>(shape.head_dim) * 2);
          out += shape.head_dim;
        }
      }
    }
  }

  for (const std::string& name : formats) {
    LowBitCache cache;
    cache.format = name;
    const KvFormat format = KvFormat::parse(name);
    const PageLayout layout = make_page_layout(format, shape.head_dim, shape.page_size);
    const std::size_t page_bytes =
        static_cast<std::size_t>(layout.page_head_bytes) * shape.num_kv_heads;
    // One period, quantized once, then copied page by page.
    std::vector<std::uint8_t> period(page_bytes * static_cast<std::size_t>(pages_per_period));
    std::vector<std::int64_t> slots(kPeriodTokens);
    std::iota(slots.begin(), slots.end(), 0);
    PagedKvCache source{
        .format = format,
        .head_dim = shape.head_dim,
        .page_size = shape.page_size,
        .pool = Tensor::contiguous(period.data(), DType::kU8,
                                   {pages_per_period, shape.num_kv_heads, layout.page_head_bytes}),
        .table = {}};
    quantize_append(Tensor::contiguous(k.data(), DType::kBF16,
                                       {kPeriodTokens, shape.num_kv_heads, shape.head_dim}),
                    Tensor::contiguous(v.data(), DType::kBF16,
                                       {kPeriodTokens, shape.num_kv_heads, shape.head_dim}),
                    Tensor::contiguous(slots.data(), DType::kI64, {kPeriodTokens}), source);
    cache.pool = allocate(page_bytes * static_cast<std::size_t>(num_pages), huge_pages);
    for (int page = 0; page < num_pages; ++page) {
      std::memcpy(cache.pool.get() + static_cast<std::size_t>(page) * page_bytes,
                  period.data() + static_cast<std::size_t>(source_page(page)) * page_bytes,
                  page_bytes);
    }
    cache.view = source;
    cache.view.pool = Tensor::contiguous(cache.pool.get(), DType::kU8,
                                         {num_pages, shape.num_kv_heads, layout.page_head_bytes});
    cache.bytes =
        static_cast<double>(page_bytes) / shape.page_size * shape.kv_len * shape.batch_size;
    problem.caches.push_back(std::move(cache));
  }
  return problem;
}

}  // namespace foscar::bench
