// foscar quantize: keys and values of a file -> a saved low-bit cache.
#include <fmt/format.h>

#include "commands.h"
#include "device_arena.h"
#include "io/saved_cache.h"
#include "paged_input.h"
#include "text_report.h"

namespace foscar::tool {

int quantize_command(const QuantizeOptions& options) {
  const KvFormat format = KvFormat::parse(options.format);
  const KvInput input = load_kv_input(options.input, QueryUse::kIgnored);
  check_format(format, input, options.page_size, options.input);

  // All backends write the same bytes, and a file is written once: the host does it.
  const std::unique_ptr<DeviceArena> arena = make_arena(DeviceType::kCpu);
  const PagePlan plan = plan_pages(input, options.page_size, PageOrder::kSequential);
  const PagedKvCache cache = make_quantized_cache(*arena, input, plan, format, "", 0);
  const io::SavedCache saved{.format = format,
                             .head_dim = input.head_dim(),
                             .page_size = options.page_size,
                             .num_kv_heads = input.num_kv_heads(),
                             .num_pages = plan.num_pages,
                             .batch_size = input.batch_size(),
                             .max_pages = plan.max_pages,
                             .pool = arena->download(cache.pool).bytes,
                             .block_table = plan.block_table,
                             .kv_len = input.kv_len};
  io::write_saved_cache(options.output, saved);
  fmt::print("{}: {}, {} requests, {} tokens, {} pages of {}, {}\n", options.output, format.name(),
             saved.batch_size, input.num_tokens(), saved.num_pages, saved.page_size,
             bytes_text(static_cast<std::int64_t>(saved.pool.size())));
  return kExitOk;
}

}  // namespace foscar::tool
