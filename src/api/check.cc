// See check.h: the entries, each a list of phases.
#include "api/check.h"

#include <limits>
#include <string>

#include "api/check_parts.h"

namespace foscar {
namespace {

constexpr int kWorkspaceAlignment = 256;  // bytes
constexpr int kDenseAlignment = 16;       // bytes: dense rows are read in 16-byte pieces

constexpr const char* kDenseShape = "[num_pages, num_kv_heads, page_size, head_dim]";

void check_dense_layout(const char* name, const Tensor& t) {
  require_rank(name, t, {4}, kDenseShape);
  require_inner_contiguous(name, t);
  require_aligned(name, t, kDenseAlignment);
  for (int dim = 0; dim < 3; ++dim) require_stride_multiple(name, t, dim, kDenseAlignment);
}

void check_same_shape(const char* name, const Tensor& t, const Tensor& like, const char* meaning) {
  for (int dim = 0; dim < like.ndim; ++dim) {
    require_extent(name, t, dim, like.shape[static_cast<std::size_t>(dim)], meaning);
  }
}

void check_supported_size(const char* name, int head_dim, int page_size) {
  // The format is any that exists for every head_dim; only the two sizes are in question.
  const KvFormat format{{2, QuantAxis::kToken, 64}, {2, QuantAxis::kToken, 64}, DType::kF32};
  const std::string problem = format_problem(format, head_dim, page_size);
  if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, std::string(name) + problem);
}

// Slots that the host can see: inside the pool, or negative for padding.
void check_slots(const AppendArgs& args) {
  const std::int64_t num_slots = args.pool.num_pages * args.layout.page_size;
  for (std::int64_t i = 0; i < args.num_tokens; ++i) {
    if (args.slot(i) < num_slots) continue;
    reject(
        ErrorKind::kInvalidArgument, "slot_mapping[" + std::to_string(i) + "]",
        std::to_string(args.slot(i)),
        "less than " + std::to_string(num_slots) + " (num_pages * page_size), or negative to skip");
  }
}

// Phases dtype and layout of a pair of row tensors.
void check_row_dtypes(const char* k_name, const Tensor& k, const char* v_name, const Tensor& v) {
  require_dtype(k_name, k, {DType::kBF16, DType::kF16, DType::kF32});
  require_dtype(v_name, v, {k.dtype}, std::string(" (the dtype of ") + k_name + ")");
}

void check_row_layout(const char* name, const Tensor& t, int rank, const char* shape) {
  require_rank(name, t, {rank}, shape);
  require_inner_contiguous(name, t);
  require_aligned(name, t, dtype_bytes(t.dtype));
}

}  // namespace

DecodeArgs check_decode(const DecodeParams& params) {
  const QueryChecks query{params};
  const PagedKvCache& cache = params.cache;
  const PoolChecks pool{cache};
  query.given();
  pool.given();
  check_table_given(cache.table);

  query.devices();
  require_device("pool", cache.pool, params.q.device, "q");
  check_table_devices(cache.table, params.q.device, "q");

  query.dtypes();
  pool.dtypes();
  check_table_dtypes(cache.table);

  query.layout();
  pool.layout();
  check_table_layout(cache.table);

  const PageLayout layout = pool.shape();
  const DecodeShape shape = query.shape(pool.num_kv_heads(), cache.head_dim);
  check_table_shape(cache.table, shape.batch_size);

  query.range(cache.page_size);
  check_table_contents(cache.table, shape.batch_size, cache.page_size, pool.num_pages());

  DecodeArgs args = query.args(shape);
  args.pool = pool.view();
  args.layout = layout;
  args.table = table_view(cache.table, cache.page_size);
  return args;
}

DenseDecodeArgs check_decode_dense(const DecodeParams& params, const PagedDenseKv& kv) {
  const QueryChecks query{params};
  query.given();
  require_given("k", kv.k);
  require_given("v", kv.v);
  check_table_given(kv.table);

  query.devices();
  require_device("k", kv.k, params.q.device, "q");
  require_device("v", kv.v, params.q.device, "q");
  check_table_devices(kv.table, params.q.device, "q");

  query.dtypes();
  require_dtype("k", kv.k, {DType::kBF16, DType::kF16});
  require_dtype("v", kv.v, {kv.k.dtype}, " (the dtype of k)");
  check_table_dtypes(kv.table);

  query.layout();
  check_dense_layout("k", kv.k);
  check_dense_layout("v", kv.v);
  check_table_layout(kv.table);

  const int page_size = require_int("k", kv.k, 2, "page_size");
  const int head_dim = require_int("k", kv.k, 3, "head_dim");
  check_supported_size("k: ", head_dim, page_size);
  check_same_shape("v", kv.v, kv.k, "the shape of k");
  const DecodeShape shape = query.shape(require_int("k", kv.k, 1, "num_kv_heads"), head_dim);
  check_table_shape(kv.table, shape.batch_size);

  query.range(page_size);
  check_table_contents(kv.table, shape.batch_size, page_size, kv.k.shape[0]);

  const auto view = [](const Tensor& t) {
    return DensePoolView{t.data, t.dtype, used_stride(t, 0), used_stride(t, 1), used_stride(t, 2)};
  };
  DenseDecodeArgs args{query.args(shape), view(kv.k), view(kv.v)};
  args.decode.table = table_view(kv.table, page_size);
  return args;
}

DecodeShape check_workspace_query(int max_batch_size, int qo_len, int num_qo_heads,
                                  int num_kv_heads, int head_dim) {
  const auto at_least = [](const char* name, int value, int least) {
    if (value >= least) return;
    reject(ErrorKind::kInvalidArgument, name, std::to_string(value),
           "at least " + std::to_string(least));
  };
  at_least("max_batch_size", max_batch_size, 0);
  at_least("qo_len", qo_len, 1);
  check_supported_size("", head_dim, 1);
  if (num_kv_heads < 1 || num_qo_heads < 1 || num_qo_heads % num_kv_heads != 0) {
    reject(ErrorKind::kInvalidArgument, "num_qo_heads",
           std::to_string(num_qo_heads) + " with num_kv_heads " + std::to_string(num_kv_heads),
           "positive numbers, num_qo_heads a multiple of num_kv_heads");
  }
  return {max_batch_size, qo_len, num_qo_heads, num_kv_heads, head_dim};
}

MergeArgs check_merge(const Tensor& v, const Tensor& lse, const Tensor& o, const Tensor& lse_out) {
  const bool has_lse_out = lse_out.defined();
  require_given("v", v);
  require_given("lse", lse);
  require_given("o", o);
  if (has_lse_out) require_given("lse_out", lse_out);

  require_device("lse", lse, v.device, "v");
  require_device("o", o, v.device, "v");
  if (has_lse_out) require_device("lse_out", lse_out, v.device, "v");

  require_dtype("v", v, {DType::kF32, DType::kF16, DType::kBF16});
  require_dtype("lse", lse, {DType::kF32});
  require_dtype("o", o, {v.dtype}, " (the dtype of v)");
  if (has_lse_out) require_dtype("lse_out", lse_out, {DType::kF32});

  const auto layout = [](const char* name, const Tensor& t, int rank, const char* shape) {
    require_rank(name, t, {rank}, shape);
    require_contiguous(name, t);
    require_aligned(name, t, dtype_bytes(t.dtype));
  };
  layout("v", v, 4, "[num_states, num_rows, num_heads, head_dim]");
  layout("lse", lse, 3, "[num_states, num_rows, num_heads]");
  layout("o", o, 3, "[num_rows, num_heads, head_dim]");
  if (has_lse_out) layout("lse_out", lse_out, 2, "[num_rows, num_heads]");

  const auto& s = v.shape;
  const int num_states = require_int("v", v, 0, "num_states");
  if (num_states < 1) {
    reject(ErrorKind::kInvalidArgument, "v", "num_states 0 in shape " + shape_text(v),
           "at least 1");
  }
  require_shape("lse", lse, {s[0], s[1], s[2]}, "v without head_dim");
  require_shape("o", o, {s[1], s[2], s[3]}, "v without num_states");
  if (has_lse_out) require_shape("lse_out", lse_out, {s[1], s[2]}, "o without head_dim");

  return {.v = v.data,
          .lse = static_cast<const float*>(lse.data),
          .o = o.data,
          .lse_out = has_lse_out ? static_cast<float*>(lse_out.data) : nullptr,
          .dtype = v.dtype,
          .num_states = num_states,
          .num_rows = s[1],
          .num_heads = require_int("v", v, 2, "num_heads"),
          .head_dim = require_int("v", v, 3, "head_dim"),
          .stream = nullptr,
          .device_index = v.device.index};
}

AppendArgs check_append(const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
                        const PagedKvCache& cache) {
  const PoolChecks pool{cache};
  require_given("k", k);
  require_given("v", v);
  require_given("slot_mapping", slot_mapping);
  pool.given();

  require_device("v", v, k.device, "k");
  require_device("slot_mapping", slot_mapping, k.device, "k");
  require_device("pool", cache.pool, k.device, "k");

  check_row_dtypes("k", k, "v", v);
  require_dtype("slot_mapping", slot_mapping, {DType::kI32, DType::kI64});
  pool.dtypes();

  check_row_layout("k", k, 3, "[num_tokens, num_kv_heads, head_dim]");
  check_row_layout("v", v, 3, "[num_tokens, num_kv_heads, head_dim]");
  require_rank("slot_mapping", slot_mapping, {1}, "[num_tokens]");
  require_contiguous("slot_mapping", slot_mapping);
  require_aligned("slot_mapping", slot_mapping, dtype_bytes(slot_mapping.dtype));
  pool.layout();
  require_no_overlap("pool", cache.pool);

  const PageLayout layout = pool.shape();
  require_extent("k", k, 1, pool.num_kv_heads(), "num_kv_heads of the pool");
  require_extent("k", k, 2, cache.head_dim, "head_dim of the cache");
  check_same_shape("v", v, k, "the shape of k");
  require_extent("slot_mapping", slot_mapping, 0, k.shape[0], "num_tokens of k");

  const AppendArgs args{.k = token_rows(k, 0),
                        .v = token_rows(v, 0),
                        .slot_mapping = slot_mapping.data,
                        .slots_are_64bit = slot_mapping.dtype == DType::kI64,
                        .num_tokens = k.shape[0],
                        .num_kv_heads = pool.num_kv_heads(),
                        .pool = pool.view(),
                        .layout = layout,
                        .stream = nullptr,
                        .device_index = k.device.index};
  if (k.device.type == DeviceType::kCpu) check_slots(args);
  return args;
}

DequantizeArgs check_dequantize(const PagedKvCache& cache, const Tensor& k_out,
                                const Tensor& v_out) {
  const PoolChecks pool{cache};
  pool.given();
  check_table_given(cache.table);
  require_given("k_out", k_out);
  require_given("v_out", v_out);

  require_device("pool", cache.pool, k_out.device, "k_out");
  check_table_devices(cache.table, k_out.device, "k_out");
  require_device("v_out", v_out, k_out.device, "k_out");

  pool.dtypes();
  check_table_dtypes(cache.table);
  check_row_dtypes("k_out", k_out, "v_out", v_out);

  pool.layout();
  check_table_layout(cache.table);
  for (const auto& [name, t] : {std::pair{"k_out", &k_out}, std::pair{"v_out", &v_out}}) {
    check_row_layout(name, *t, 4, "[batch_size, max_kv_len, num_kv_heads, head_dim]");
    require_no_overlap(name, *t);
  }

  const PageLayout layout = pool.shape();
  const int batch_size = require_int("k_out", k_out, 0, "batch_size");
  require_extent("k_out", k_out, 2, pool.num_kv_heads(), "num_kv_heads of the pool");
  require_extent("k_out", k_out, 3, cache.head_dim, "head_dim of the cache");
  check_same_shape("v_out", v_out, k_out, "the shape of k_out");
  check_table_shape(cache.table, batch_size);

  check_table_contents(cache.table, batch_size, cache.page_size, pool.num_pages(), k_out.shape[1]);
  return {.k = token_rows(k_out, 1),
          .v = token_rows(v_out, 1),
          .k_batch_stride = used_stride(k_out, 0),
          .v_batch_stride = used_stride(v_out, 0),
          .max_kv_len = k_out.shape[1],
          .batch_size = batch_size,
          .num_kv_heads = pool.num_kv_heads(),
          .pool = pool.view(),
          .layout = layout,
          .table = table_view(cache.table, cache.page_size),
          .stream = nullptr,
          .device_index = k_out.device.index};
}

void check_workspace(const ExecutionContext& context, std::int64_t needed, DeviceType device) {
  if (device == DeviceType::kCpu || needed == 0) return;
  if (context.workspace == nullptr || context.workspace_bytes < needed) {
    reject(ErrorKind::kInvalidArgument, "workspace",
           context.workspace == nullptr ? "a null pointer"
                                        : std::to_string(context.workspace_bytes) + " bytes",
           "at least " + std::to_string(needed) + " bytes (decode_workspace_bytes)");
  }
  const auto rest = reinterpret_cast<std::uintptr_t>(context.workspace) % kWorkspaceAlignment;
  if (rest != 0) {
    reject(ErrorKind::kInvalidArgument, "workspace",
           "an address " + std::to_string(rest) + " bytes past a multiple of " +
               std::to_string(kWorkspaceAlignment),
           "an alignment of " + std::to_string(kWorkspaceAlignment) + " bytes");
  }
}

}  // namespace foscar
