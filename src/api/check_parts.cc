// See check_parts.h.
#include "api/check_parts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "foscar/format/kv_format.h"

namespace foscar {
namespace {

constexpr int kPoolAlignment = 16;  // bytes: pages are read in 16-byte chunks
constexpr int kChunkMultiple = 64;  // tokens: the smallest tile of any backend

constexpr const char* kQueryShape =
    "[batch_size, num_qo_heads, head_dim] or [batch_size, qo_len, num_qo_heads, head_dim]";

// View of q or o; a missing qo_len dimension has stride 0.
RowView row_view(const Tensor& t) {
  const bool several = t.ndim == 4;
  return {t.data, t.dtype, used_stride(t, 0), several ? used_stride(t, 1) : 0,
          used_stride(t, several ? 2 : 1)};
}

}  // namespace

void QueryChecks::given() const {
  require_given("q", params.q);
  require_given("o", params.o);
  if (params.lse.defined()) require_given("lse", params.lse);
  if (params.mask.defined()) require_given("mask", params.mask);
  if (params.sinks.defined()) require_given("sinks", params.sinks);
}

void QueryChecks::devices() const {
  require_device("o", params.o, params.q.device, "q");
  if (params.lse.defined()) require_device("lse", params.lse, params.q.device, "q");
  if (params.mask.defined()) require_device("mask", params.mask, params.q.device, "q");
  if (params.sinks.defined()) require_device("sinks", params.sinks, params.q.device, "q");
}

void QueryChecks::dtypes() const {
  if (params.q.device.type == DeviceType::kCpu) {
    require_dtype("q", params.q, {DType::kBF16, DType::kF16, DType::kF32});
    if (params.o.dtype != params.q.dtype) {
      require_dtype("o", params.o, {params.q.dtype, DType::kF32}, " (the dtype of q, or float32)");
    }
  } else {
    require_dtype("q", params.q, {DType::kBF16, DType::kF16}, " on a CUDA device");
    require_dtype("o", params.o, {params.q.dtype}, " (the dtype of q)");
  }
  if (params.lse.defined()) require_dtype("lse", params.lse, {DType::kF32});
  if (params.mask.defined()) require_dtype("mask", params.mask, {DType::kU8});
  if (params.sinks.defined()) require_dtype("sinks", params.sinks, {DType::kF32});
}

void QueryChecks::layout() const {
  require_rank("q", params.q, {3, 4}, kQueryShape);
  require_inner_contiguous("q", params.q);
  require_aligned("q", params.q, dtype_bytes(params.q.dtype));
  require_rank("o", params.o, {params.q.ndim}, "the shape of q, " + shape_text(params.q));
  require_inner_contiguous("o", params.o);
  require_aligned("o", params.o, dtype_bytes(params.o.dtype));
  require_no_overlap("o", params.o);
  const auto contiguous = [](const char* name, const Tensor& t, std::initializer_list<int> ranks,
                             const char* shape) {
    if (!t.defined()) return;
    require_rank(name, t, ranks, shape);
    require_contiguous(name, t);
    require_aligned(name, t, dtype_bytes(t.dtype));
  };
  contiguous("lse", params.lse, {params.q.ndim - 1}, "the shape of q without head_dim");
  contiguous("mask", params.mask, {2, 3}, "[qo_len, qo_len] or [batch_size, qo_len, qo_len]");
  contiguous("sinks", params.sinks, {1}, "[num_qo_heads]");
}

DecodeShape QueryChecks::shape(std::int64_t num_kv_heads, int head_dim) const {
  const Tensor& q = params.q;
  const int heads_dim = q.ndim - 2;
  DecodeShape shape{.batch_size = require_int("q", q, 0, "batch_size"),
                    .qo_len = q.ndim == 4 ? require_int("q", q, 1, "qo_len") : 1,
                    .num_qo_heads = require_int("q", q, heads_dim, "num_qo_heads"),
                    .num_kv_heads = static_cast<int>(num_kv_heads),
                    .head_dim = head_dim};
  require_extent("q", q, q.ndim - 1, head_dim, "head_dim of the cache");
  if (shape.qo_len < 1) {
    reject(ErrorKind::kInvalidArgument, "q", "qo_len 0 in shape " + shape_text(q), "at least 1");
  }
  if (num_kv_heads < 1 || shape.num_qo_heads < 1 || shape.num_qo_heads % num_kv_heads != 0) {
    reject(ErrorKind::kInvalidArgument, "q",
           "num_qo_heads " + std::to_string(shape.num_qo_heads) + " with num_kv_heads " +
               std::to_string(num_kv_heads),
           "positive numbers, num_qo_heads a multiple of num_kv_heads");
  }
  const auto& s = q.shape;
  if (q.ndim == 3) {
    require_shape("o", params.o, {s[0], s[1], s[2]}, "the shape of q");
    if (params.lse.defined()) require_shape("lse", params.lse, {s[0], s[1]}, "q without head_dim");
  } else {
    require_shape("o", params.o, {s[0], s[1], s[2], s[3]}, "the shape of q");
    if (params.lse.defined())
      require_shape("lse", params.lse, {s[0], s[1], s[2]}, "q without head_dim");
  }
  if (params.mask.defined()) {
    const std::int64_t rows = shape.qo_len;
    if (params.mask.ndim == 2) {
      require_shape("mask", params.mask, {rows, rows}, "[qo_len, qo_len]");
    } else {
      require_shape("mask", params.mask, {s[0], rows, rows}, "[batch_size, qo_len, qo_len]");
    }
  }
  if (params.sinks.defined()) {
    require_shape("sinks", params.sinks, {shape.num_qo_heads}, "num_qo_heads of q");
  }
  return shape;
}

void QueryChecks::range(int page_size) const {
  if (!std::isfinite(static_cast<float>(params.sm_scale))) {
    reject(ErrorKind::kInvalidArgument, "sm_scale", std::to_string(params.sm_scale),
           "finite float32 values, or 0 for 1 / sqrt(head_dim)");
  }
  if (params.window_left < -1) {
    reject(ErrorKind::kInvalidArgument, "window_left", std::to_string(params.window_left),
           "-1 (no limit), or the number of keys before the current one");
  }
  const float cap = static_cast<float>(params.logits_soft_cap);
  if (!(std::isfinite(cap) && cap >= 0.0f) || (cap == 0.0f && params.logits_soft_cap != 0.0)) {
    reject(ErrorKind::kInvalidArgument, "logits_soft_cap", std::to_string(params.logits_soft_cap),
           "0 (off) or a positive finite float32");
  }
  // Page sizes are powers of two, so a multiple of both is a multiple of the larger.
  const int multiple = std::max(page_size, kChunkMultiple);
  if (params.kv_chunk_size < 0 || params.kv_chunk_size % multiple != 0) {
    reject(ErrorKind::kInvalidArgument, "kv_chunk_size", std::to_string(params.kv_chunk_size),
           "0 or a multiple of " + std::to_string(multiple) + " (of page_size " +
               std::to_string(page_size) + " and of " + std::to_string(kChunkMultiple) + ")");
  }
}

DecodeArgs QueryChecks::args(const DecodeShape& shape) const {
  DecodeArgs args{};
  args.shape = shape;
  args.q = row_view(params.q);
  args.o = row_view(params.o);
  args.lse = params.lse.defined() ? static_cast<float*>(params.lse.data) : nullptr;
  args.sm_scale = static_cast<float>(
      params.sm_scale != 0.0 ? params.sm_scale : 1.0 / std::sqrt(double(shape.head_dim)));
  args.causal = params.causal && !params.mask.defined();
  args.modifiers = {
      .window_left = params.window_left,
      .logits_soft_cap = static_cast<float>(params.logits_soft_cap),
      .sinks = params.sinks.defined() ? static_cast<const float*>(params.sinks.data) : nullptr,
      .mask = params.mask.defined() ? static_cast<const std::uint8_t*>(params.mask.data) : nullptr,
      .mask_batch_stride = params.mask.ndim == 3 ? std::int64_t{shape.qo_len} * shape.qo_len : 0};
  args.kv_chunk_size = params.kv_chunk_size;
  args.device_index = params.q.device.index;
  return args;
}

void PoolChecks::given() const { require_given("pool", cache.pool); }

void PoolChecks::dtypes() const { require_dtype("pool", cache.pool, {DType::kU8}); }

void PoolChecks::layout() const {
  require_rank("pool", cache.pool, {3}, "[num_pages, num_kv_heads, page_head_bytes]");
  require_inner_contiguous("pool", cache.pool);
  require_aligned("pool", cache.pool, kPoolAlignment);
  require_stride_multiple("pool", cache.pool, 0, kPoolAlignment);
  require_stride_multiple("pool", cache.pool, 1, kPoolAlignment);
}

PageLayout PoolChecks::shape() const {
  const std::string problem = format_problem(cache.format, cache.head_dim, cache.page_size);
  if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem);
  const PageLayout layout = make_page_layout(cache.format, cache.head_dim, cache.page_size);
  if (cache.pool.shape[2] < layout.page_head_bytes) {
    reject(ErrorKind::kInvalidArgument, "pool",
           std::to_string(cache.pool.shape[2]) + " bytes per page and head in shape " +
               shape_text(cache.pool),
           "at least " + std::to_string(layout.page_head_bytes) + " (page_head_bytes of " +
               cache.format.name() + " at head_dim " + std::to_string(cache.head_dim) +
               ", page_size " + std::to_string(cache.page_size) + ")");
  }
  return layout;
}

int PoolChecks::num_kv_heads() const { return require_int("pool", cache.pool, 1, "num_kv_heads"); }

PoolView PoolChecks::view() const {
  return {static_cast<std::uint8_t*>(cache.pool.data), used_stride(cache.pool, 0),
          used_stride(cache.pool, 1), num_pages()};
}

TokenRows token_rows(const Tensor& t, int token_dim) {
  return {t.data, t.dtype, used_stride(t, token_dim), used_stride(t, token_dim + 1)};
}

}  // namespace foscar
