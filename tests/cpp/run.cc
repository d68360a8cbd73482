// See run.h.
#include "run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace foscar::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Byte strides of the placed pool.
struct PoolStrides {
  std::int64_t page, head, total;
};
PoolStrides pool_strides(const HostCache& cache, const RunOptions& options) {
  const std::int64_t block = cache.layout.page_head_bytes;
  const std::int64_t heads = cache.g.num_kv_heads;
  if (options.heads_outermost) {
    const std::int64_t page = block + options.page_padding;
    return {page, page * cache.num_pages, page * cache.num_pages * heads};
  }
  const std::int64_t page = block * heads + options.page_padding;
  return {page, block, page * cache.num_pages};
}

std::vector<std::uint8_t> placed_pool(const HostCache& cache, const PoolStrides& strides) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(strides.total), 0xFF);
  for (int page = 0; page < cache.num_pages; ++page) {
    for (int head = 0; head < cache.g.num_kv_heads; ++head) {
      std::memcpy(bytes.data() + page * strides.page + head * strides.head, cache.block(page, head),
                  static_cast<std::size_t>(cache.layout.page_head_bytes));
    }
  }
  return bytes;
}

template <typename T>
Buffer upload(Place& place, const std::vector<T>& values) {
  return Buffer(place, values.data(), values.size() * sizeof(T));
}

// Rows of head_dim elements, `padding` elements after each token's heads.
struct RowLayout {
  std::int64_t head, token, batch, total;
};
RowLayout row_layout(const Geometry& g, int padding) {
  const std::int64_t head = g.head_dim;
  const std::int64_t token = head * g.num_qo_heads + padding;
  const std::int64_t batch = token * g.qo_len;
  return {head, token, batch, batch * g.batch_size()};
}

// Copies between compact rows and padded ones.
template <typename Copy>
void each_row(const Geometry& g, const RowLayout& rows, const Copy& copy) {
  std::int64_t compact = 0;
  for (int b = 0; b < g.batch_size(); ++b) {
    for (int i = 0; i < g.qo_len; ++i) {
      for (int h = 0; h < g.num_qo_heads; ++h, compact += g.head_dim) {
        copy(compact, b * rows.batch + i * rows.token + h * rows.head);
      }
    }
  }
}

// qo_len 1 goes in as [batch, heads, head_dim], more as [batch, qo_len, heads, head_dim].
Tensor row_tensor(void* data, DType dtype, Device device, const Geometry& g,
                  const RowLayout& rows) {
  Tensor t{.data = data, .dtype = dtype, .device = device};
  if (g.qo_len == 1) {
    t.ndim = 3;
    t.shape = {g.batch_size(), g.num_qo_heads, g.head_dim};
    t.strides = {rows.batch, rows.head, 1};
  } else {
    t.ndim = 4;
    t.shape = {g.batch_size(), g.qo_len, g.num_qo_heads, g.head_dim};
    t.strides = {rows.batch, rows.token, rows.head, 1};
  }
  return t;
}

Tensor with_odd_strides(Tensor t, std::int64_t stride) {
  for (int i = 0; i < t.ndim && stride != 0; ++i) {
    if (t.shape[static_cast<std::size_t>(i)] == 1) t.strides[static_cast<std::size_t>(i)] = stride;
  }
  return t;
}

struct HostTable {
  std::vector<std::int32_t> indptr{0}, indices, last_page_len;  // CSR
  std::vector<std::int32_t> block, kv_len;                      // block table
  std::int64_t columns = 0;
};
HostTable host_table(const HostCache& cache, const RunOptions& options) {
  HostTable t;
  const Geometry& g = cache.g;
  for (const auto& row : cache.pages)
    t.columns = std::max(t.columns, static_cast<std::int64_t>(row.size()));
  t.columns += options.extra_columns;
  for (int b = 0; b < g.batch_size(); ++b) {
    const auto& row = cache.pages[static_cast<std::size_t>(b)];
    const int tokens = g.kv_lens[static_cast<std::size_t>(b)];
    t.indices.insert(t.indices.end(), row.begin(), row.end());
    t.indptr.push_back(static_cast<std::int32_t>(t.indices.size()));
    t.last_page_len.push_back(tokens == 0 ? -77 : (tokens - 1) % g.page_size + 1);
    t.block.insert(t.block.end(), row.begin(), row.end());
    t.block.resize(static_cast<std::size_t>((b + 1) * t.columns), options.table_filler);
    t.kv_len.push_back(tokens);
  }
  t.indices.resize(t.indices.size() + static_cast<std::size_t>(options.extra_columns),
                   options.table_filler);
  return t;
}

}  // namespace

bool same_bits(const Result& a, const Result& b) {
  const auto equal = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  };
  return equal(a.o, b.o) && equal(a.lse, b.lse);
}

DType output_dtype(const TestBackend& backend, const Geometry& g, const RunOptions& options) {
  if (backend.is_cuda()) return g.q_dtype;
  return options.o_dtype.value_or(DType::kF32);
}

PlacedCache place_cache(Place& place, const HostCache& cache, const RunOptions& options) {
  const Geometry& g = cache.g;
  const Device device = place.device();
  const PoolStrides strides = pool_strides(cache, options);
  const HostTable table = host_table(cache, options);
  PlacedCache placed{upload(place, placed_pool(cache, strides)),
                     upload(place, table.indptr),
                     upload(place, table.indices),
                     upload(place, table.last_page_len),
                     upload(place, table.block),
                     upload(place, table.kv_len),
                     {.format = g.format,
                      .head_dim = g.head_dim,
                      .page_size = g.page_size,
                      .pool = {},
                      .table = {}}};
  Tensor& pool = placed.cache.pool;
  pool = {.data = placed.pool.data(), .dtype = DType::kU8, .device = device, .ndim = 3};
  pool.shape = {cache.num_pages, g.num_kv_heads, cache.layout.page_head_bytes};
  pool.strides = {strides.page, strides.head, 1};
  pool = with_odd_strides(pool, options.odd_stride);
  PageTable& pt = placed.cache.table;
  const std::int64_t batch = g.batch_size();
  const auto ints = [&](const Buffer& buffer, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(buffer.data(), DType::kI32, shape, device);
  };
  if (options.csr) {
    pt.kv_indptr = ints(placed.indptr, {batch + 1});
    pt.kv_indices = ints(placed.indices, {static_cast<std::int64_t>(table.indices.size())});
    pt.kv_last_page_len = ints(placed.last_page_len, {batch});
  } else {
    pt.block_table =
        with_odd_strides(ints(placed.block_table, {batch, table.columns}), options.odd_stride);
    pt.kv_len = ints(placed.kv_len, {batch});
  }
  return placed;
}

Result run_decode(const TestBackend& backend, const HostCache& cache, const std::vector<float>& q,
                  const RunOptions& options) {
  const Geometry& g = cache.g;
  Place& place = *backend.place;
  const Device device = place.device();
  const DType o_dtype = output_dtype(backend, g, options);

  const RowLayout q_rows = row_layout(g, options.q_row_padding);
  std::vector<float> q_padded(static_cast<std::size_t>(q_rows.total), kNaN);
  each_row(g, q_rows, [&](std::int64_t compact, std::int64_t padded) {
    std::copy_n(q.begin() + compact, g.head_dim, q_padded.begin() + padded);
  });
  const RowLayout o_rows = row_layout(g, options.o_row_padding);
  const std::vector<float> o_poison(static_cast<std::size_t>(o_rows.total), kNaN);
  const std::size_t num_rows = q.size() / static_cast<std::size_t>(g.head_dim);

  const PlacedCache placed = place_cache(place, cache, options);
  const Buffer q_buffer = upload(place, to_bytes(q_padded, g.q_dtype));
  const Buffer o_buffer = upload(place, to_bytes(o_poison, o_dtype));
  const Buffer lse_buffer = upload(place, std::vector<float>(num_rows, 7.0f));

  DecodeParams params;
  params.q = with_odd_strides(row_tensor(q_buffer.data(), g.q_dtype, device, g, q_rows),
                              options.odd_stride);
  params.cache = placed.cache;
  params.o =
      with_odd_strides(row_tensor(o_buffer.data(), o_dtype, device, g, o_rows), options.odd_stride);
  params.lse = g.qo_len == 1
                   ? Tensor::contiguous(lse_buffer.data(), DType::kF32,
                                        {g.batch_size(), g.num_qo_heads}, device)
                   : Tensor::contiguous(lse_buffer.data(), DType::kF32,
                                        {g.batch_size(), g.qo_len, g.num_qo_heads}, device);
  params.sm_scale = options.sm_scale;
  params.causal = options.causal;
  params.window_left = options.window_left;
  params.logits_soft_cap = options.soft_cap;
  const Buffer sinks = upload(place, options.sinks), mask = upload(place, options.mask);
  if (!options.sinks.empty()) {
    params.sinks = Tensor::contiguous(sinks.data(), DType::kF32, {g.num_qo_heads}, device);
  }
  if (!options.mask.empty()) {
    const bool shared = options.mask.size() == static_cast<std::size_t>(g.qo_len * g.qo_len);
    params.mask = shared ? Tensor::contiguous(mask.data(), DType::kU8, {g.qo_len, g.qo_len}, device)
                         : Tensor::contiguous(mask.data(), DType::kU8,
                                              {g.batch_size(), g.qo_len, g.qo_len}, device);
  }
  // The cuda backend has no fixed splits yet: there the same problems run under its own schedule.
  params.kv_chunk_size = backend.is_cuda() ? 0 : options.kv_chunk_size;

  const bool own_workspace = backend.is_cuda() && options.workspace == nullptr;
  const std::int64_t own_bytes =
      own_workspace ? decode_workspace_bytes(g.batch_size(), g.qo_len, g.num_qo_heads,
                                             g.num_kv_heads, g.head_dim, device)
                    : 0;
  const Buffer workspace =
      upload(place, std::vector<std::uint8_t>(static_cast<std::size_t>(own_bytes), 0));
  decode(params, {.workspace = own_workspace ? workspace.data() : options.workspace,
                  .workspace_bytes = own_workspace ? own_bytes : options.workspace_bytes,
                  .backend = backend.name});

  // Compact the output; the padding must still be poison.
  const std::vector<float> o_padded = to_floats(o_buffer.download(), o_dtype);
  Result result{std::vector<float>(q.size()), to_floats(lse_buffer.download(), DType::kF32)};
  std::vector<bool> written(o_padded.size(), false);
  each_row(g, o_rows, [&](std::int64_t compact, std::int64_t padded) {
    std::copy_n(o_padded.begin() + padded, g.head_dim, result.o.begin() + compact);
    std::fill_n(written.begin() + padded, g.head_dim, true);
  });
  for (std::size_t i = 0; i < o_padded.size(); ++i) {
    if (!written[i]) {
      EXPECT_TRUE(std::isnan(o_padded[i])) << "element " << i << " between rows of o was written";
    }
  }
  return result;
}

std::vector<std::uint8_t> run_append(const TestBackend& backend, const HostCache& cache,
                                     const AppendInput& input) {
  const Geometry& g = cache.g;
  Place& place = *backend.place;
  const Device device = place.device();
  const auto tokens = static_cast<std::int64_t>(input.slots.size());
  const std::int64_t row = static_cast<std::int64_t>(g.num_kv_heads) * g.head_dim;
  const std::int64_t padded_row = row + input.row_padding;
  const auto padded = [&](const std::vector<float>& rows) {
    std::vector<float> out(static_cast<std::size_t>(tokens * padded_row), 1e6f);
    for (std::int64_t t = 0; t < tokens; ++t)
      std::copy_n(rows.begin() + t * row, row, out.begin() + t * padded_row);
    return out;
  };
  const Buffer k = upload(place, to_bytes(padded(input.k), input.dtype));
  const Buffer v = upload(place, to_bytes(padded(input.v), input.dtype));
  const std::vector<std::int32_t> narrow(input.slots.begin(), input.slots.end());
  const Buffer slots = input.slots_are_32bit ? upload(place, narrow) : upload(place, input.slots);
  const PlacedCache placed = place_cache(place, cache, {});
  const auto rows = [&](const Buffer& buffer) {
    Tensor t = Tensor::contiguous(buffer.data(), input.dtype, {tokens, g.num_kv_heads, g.head_dim},
                                  device);
    t.strides[0] = padded_row;
    return t;
  };
  quantize_append(
      rows(k), rows(v),
      Tensor::contiguous(slots.data(), input.slots_are_32bit ? DType::kI32 : DType::kI64, {tokens},
                         device),
      placed.cache, {.backend = backend.name});
  return placed.pool.download();
}

DequantizedRows run_dequantize(const TestBackend& backend, const HostCache& cache, DType dtype,
                               const RunOptions& options) {
  const Geometry& g = cache.g;
  Place& place = *backend.place;
  const std::int64_t max_len = *std::max_element(g.kv_lens.begin(), g.kv_lens.end());
  const std::vector<float> poison(
      static_cast<std::size_t>(g.batch_size() * max_len * g.num_kv_heads * g.head_dim), kNaN);
  const Buffer k = upload(place, to_bytes(poison, dtype)),
               v = upload(place, to_bytes(poison, dtype));
  const PlacedCache placed = place_cache(place, cache, options);
  const auto rows = [&](const Buffer& buffer) {
    return Tensor::contiguous(buffer.data(), dtype,
                              {g.batch_size(), max_len, g.num_kv_heads, g.head_dim},
                              place.device());
  };
  dequantize(placed.cache, rows(k), rows(v), {.backend = backend.name});
  return {to_floats(k.download(), dtype), to_floats(v.download(), dtype)};
}

}  // namespace foscar::test
