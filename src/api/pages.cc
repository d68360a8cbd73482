// copy_pages: check, then memcpy on the host or the CUDA backend. Bytes are bytes: no backend for the CPU is involved.
#include "foscar/pages.h"

#include <cstring>
#include <unordered_set>

#include "api/check_parts.h"
#include "api/check_tensor.h"
#include "dispatch/backend.h"

namespace foscar {
namespace {

void check_ids(std::span<const PageCopy> copies, const PoolView& from, const PoolView& to) {
  std::unordered_set<std::int64_t> sources, destinations;
  const bool one_pool = from.data == to.data;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::string name = "copies[" + std::to_string(i) + "]";
    const PageCopy& copy = copies[i];
    const auto in_pool = [&](const char* side, std::int64_t id, const PoolView& pool) {
      if (id >= 0 && id < pool.num_pages) return;
      reject(ErrorKind::kInvalidArgument, name, std::string(side) + " page " + std::to_string(id),
             "0 .. " + std::to_string(pool.num_pages - 1) + ", the pages of its pool");
    };
    in_pool("source", copy.from, from);
    in_pool("destination", copy.to, to);
    sources.insert(copy.from);
    if (!destinations.insert(copy.to).second) {
      reject(ErrorKind::kInvalidArgument, name,
             "destination page " + std::to_string(copy.to) + " again", "every destination once");
    }
  }
  for (std::size_t i = 0; one_pool && i < copies.size(); ++i) {
    if (sources.count(copies[i].to) == 0) continue;
    reject(ErrorKind::kInvalidArgument, "copies[" + std::to_string(i) + "]",
           "destination page " + std::to_string(copies[i].to) + ", which is also a source",
           "pages of one pool that are either read or written");
  }
}

}  // namespace

void copy_pages(const PagedKvCache& from, const PagedKvCache& to, std::span<const PageCopy> copies,
                const ExecutionContext& context) {
  const PoolChecks source{from}, destination{to};
  source.given();
  destination.given();
  const Device a = from.pool.device, b = to.pool.device;
  if (a.type == DeviceType::kCuda && b.type == DeviceType::kCuda) {
    require_device("to.pool", to.pool, a, "from.pool");
  }
  source.dtypes();
  destination.dtypes();
  source.layout();
  destination.layout();
  require_no_overlap("to.pool", to.pool);
  const PageLayout layout = source.shape();
  destination.shape();
  if (from.format != to.format || from.head_dim != to.head_dim || from.page_size != to.page_size ||
      source.num_kv_heads() != destination.num_kv_heads()) {
    const auto text = [](const PagedKvCache& c, int heads) {
      return c.format.name() + ", head_dim " + std::to_string(c.head_dim) + ", page_size " +
             std::to_string(c.page_size) + ", " + std::to_string(heads) + " KV heads";
    };
    reject(ErrorKind::kInvalidArgument, "to", text(to, destination.num_kv_heads()),
           text(from, source.num_kv_heads()) + ", as in from");
  }
  CopyPagesArgs args{.from = source.view(),
                     .to = destination.view(),
                     .from_cuda = a.type == DeviceType::kCuda,
                     .to_cuda = b.type == DeviceType::kCuda,
                     .copies = copies,
                     .num_kv_heads = source.num_kv_heads(),
                     .page_head_bytes = layout.page_head_bytes,
                     .stream = context.stream,
                     .device_index = a.type == DeviceType::kCuda ? a.index : b.index};
  check_ids(copies, args.from, args.to);
  if (args.from_cuda || args.to_cuda) {
    const Backend& backend = find_backend(DeviceType::kCuda, context.backend);
    if (backend.copy_pages == nullptr) {
      throw Error(ErrorKind::kUnsupported,
                  "copy_pages: backend '" + std::string(backend.name) + "' does not offer it");
    }
    backend.copy_pages(args);
    return;
  }
  for (const PageCopy& copy : copies) {
    for (int head = 0; head < args.num_kv_heads; ++head) {
      std::memcpy(args.to.data + copy.to * args.to.page_stride + head * args.to.head_stride,
                  args.from.data + copy.from * args.from.page_stride + head * args.from.head_stride,
                  static_cast<std::size_t>(args.page_head_bytes));
    }
  }
}

}  // namespace foscar
