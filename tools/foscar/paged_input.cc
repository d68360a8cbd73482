#include "paged_input.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "foscar/append.h"
#include "foscar/error.h"
#include "foscar/layout/page_layout.h"
#include "io/file_error.h"

namespace foscar::tool {
namespace {

constexpr std::uint32_t kShuffleSeed = 7;
constexpr std::uint8_t kNanFill = 0xff;

PageTable upload_table(DeviceArena& arena, const KvInput& input, const PagePlan& plan) {
  const auto upload = [&arena](const std::vector<std::int32_t>& values,
                               std::vector<std::int64_t> shape) {
    const Tensor tensor = arena.allocate(DType::kI32, shape, 0);
    arena.copy_from_host(tensor, values.data(),
                         static_cast<std::int64_t>(values.size() * sizeof(std::int32_t)));
    return tensor;
  };
  PageTable table;
  table.block_table = upload(plan.block_table, {input.batch_size(), plan.max_pages});
  table.kv_len = upload(input.kv_len, {input.batch_size()});
  return table;
}

// [batch_size, max_kv_len, ...] seen as one run of tokens, [batch_size * max_kv_len, num_kv_heads,
// head_dim].
HostTensor as_token_rows(const HostTensor& rows) {
  return {rows.dtype, {rows.shape[0] * rows.shape[1], rows.shape[2], rows.shape[3]}, rows.bytes};
}

// [num_pages, num_kv_heads, page_size, head_dim], BF16.
HostTensor page_rows(const HostTensor& rows, const PagePlan& plan) {
  const std::int64_t num_heads = rows.shape[2];
  const std::int64_t head_dim = rows.shape[3];
  HostTensor pages = HostTensor::filled(
      DType::kBF16, {plan.num_pages, num_heads, plan.page_size, head_dim}, kNanFill);
  for (std::size_t token = 0; token < plan.slot_mapping.size(); ++token) {
    const std::int64_t slot = plan.slot_mapping[token];
    if (slot < 0) continue;
    for (std::int64_t head = 0; head < num_heads; ++head) {
      const std::int64_t source = (static_cast<std::int64_t>(token) * num_heads + head) * head_dim;
      const std::int64_t target =
          ((slot / plan.page_size * num_heads + head) * plan.page_size + slot % plan.page_size) *
          head_dim;
      for (std::int64_t c = 0; c < head_dim; ++c) pages.set(target + c, rows.at(source + c));
    }
  }
  return pages;
}

}  // namespace

void check_format(const KvFormat& format, const KvInput& input, int page_size,
                  const std::string& path) {
  const std::string problem = format_problem(format, input.head_dim(), page_size);
  if (problem.empty()) return;
  if (!path.empty() && problem.starts_with("head_dim")) {
    io::reject_file(path, "tensor 'k'", io::shape_text(input.k.shape),
                    "a supported head_dim (" + problem + ")");
  }
  throw Error(ErrorKind::kInvalidArgument, problem);
}

PagePlan plan_pages(const KvInput& input, int page_size, PageOrder order) {
  const auto pages_of = [page_size](std::int64_t tokens) {
    return (tokens + page_size - 1) / page_size;
  };
  PagePlan plan;
  plan.page_size = page_size;
  plan.max_pages = pages_of(input.max_kv_len());
  for (const std::int32_t length : input.kv_len) plan.num_pages += pages_of(length);

  std::vector<std::int32_t> ids(static_cast<std::size_t>(plan.num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  if (order == PageOrder::kShuffled)
    std::shuffle(ids.begin(), ids.end(), std::mt19937(kShuffleSeed));
  plan.num_pages = std::max<std::int64_t>(plan.num_pages, 1);

  const std::int32_t unused =
      order == PageOrder::kShuffled ? std::numeric_limits<std::int32_t>::max() : -1;
  plan.block_table.assign(static_cast<std::size_t>(input.batch_size() * plan.max_pages), unused);
  plan.slot_mapping.assign(static_cast<std::size_t>(input.batch_size() * input.max_kv_len()), -1);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < input.batch_size(); ++b) {
    const std::int64_t length = input.kv_len[static_cast<std::size_t>(b)];
    for (std::int64_t page = 0; page < pages_of(length); ++page) {
      plan.block_table[static_cast<std::size_t>(b * plan.max_pages + page)] =
          ids[next + static_cast<std::size_t>(page)];
    }
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t page = ids[next + static_cast<std::size_t>(t / page_size)];
      plan.slot_mapping[static_cast<std::size_t>(b * input.max_kv_len() + t)] =
          page * page_size + t % page_size;
    }
    next += static_cast<std::size_t>(pages_of(length));
  }
  return plan;
}

PagedKvCache make_quantized_cache(DeviceArena& arena, const KvInput& input, const PagePlan& plan,
                                  const KvFormat& format, const std::string& backend,
                                  std::uint8_t fill) {
  const PageLayout layout = make_page_layout(format, input.head_dim(), plan.page_size);
  PagedKvCache cache{
      .format = format,
      .head_dim = input.head_dim(),
      .page_size = plan.page_size,
      .pool = arena.allocate(DType::kU8,
                             {plan.num_pages, input.num_kv_heads(), layout.page_head_bytes}, fill),
      .table = upload_table(arena, input, plan)};
  const Tensor slots =
      arena.allocate(DType::kI64, {static_cast<std::int64_t>(plan.slot_mapping.size())}, 0);
  arena.copy_from_host(slots, plan.slot_mapping.data(),
                       static_cast<std::int64_t>(plan.slot_mapping.size() * sizeof(std::int64_t)));
  quantize_append(arena.upload(as_token_rows(input.k)), arena.upload(as_token_rows(input.v)), slots,
                  cache, {.backend = backend});
  return cache;
}

PagedDenseKv make_dense_cache(DeviceArena& arena, const KvInput& input, const PagePlan& plan) {
  return {.k = arena.upload(page_rows(input.k, plan)),
          .v = arena.upload(page_rows(input.v, plan)),
          .table = upload_table(arena, input, plan)};
}

}  // namespace foscar::tool
