// foscar inspect: what a saved cache holds. Walks the parameters of every token slot in use.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "commands.h"
#include "foscar/layout/page_layout.h"
#include "io/file_error.h"
#include "io/saved_cache.h"
#include "text_report.h"

namespace foscar::tool {
namespace {

struct Spread {
  float min = 0;
  float median = 0;
  float max = 0;
};

Spread spread(std::vector<float>& values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {*min, *middle, *max};
}

struct SideStatistics {
  std::int64_t num_groups = 0;
  std::int64_t nan_groups = 0;  // groups that held a NaN or an infinity: their offset is NaN
  Spread scale;
  Spread offset;  // of the other groups
};

// One side's parameters over all slots in use. Throws Error{kFile} for a scale that no quantizer
// writes.
SideStatistics side_statistics(const io::SavedCache& cache, const std::string& path, bool is_k) {
  const PageLayout layout = cache.layout();
  const SideLayout& side = is_k ? layout.k : layout.v;
  std::vector<float> scales;
  std::vector<float> offsets;
  SideStatistics result;
  const auto visit = [&](std::int64_t page, int head, int slot, int channel) {
    const std::uint8_t* pair = cache.block(page, head) + params_offset(layout, side, slot, channel);
    const float scale = load_as_float(pair, 0, layout.param_dtype);
    const float offset = load_as_float(pair, 1, layout.param_dtype);
    if (!std::isfinite(scale) || !(scale > 0)) {
      io::reject_file(path, "tensor 'pool'",
                      fmt::format("{} scale {} (page {}, head {}, slot {}, channel {})",
                                  is_k ? "K" : "V", scale, page, head, slot, channel),
                      "a finite scale above 0");
    }
    ++result.num_groups;
    scales.push_back(scale);
    if (std::isnan(offset)) {
      ++result.nan_groups;
    } else {
      offsets.push_back(offset);
    }
  };
  const bool token_wise = side.axis == QuantAxis::kToken;
  const int slot_step = token_wise ? 1 : side.group_size;
  const int channel_step = token_wise ? side.group_size : 1;
  for (std::int64_t b = 0; b < cache.batch_size; ++b) {
    for (std::int64_t t = 0; t < cache.kv_len[static_cast<std::size_t>(b)]; t += slot_step) {
      const std::int64_t page =
          cache.block_table[static_cast<std::size_t>(b * cache.max_pages + t / cache.page_size)];
      for (int head = 0; head < cache.num_kv_heads; ++head) {
        for (int channel = 0; channel < cache.head_dim; channel += channel_step) {
          visit(page, head, static_cast<int>(t % cache.page_size), channel);
        }
      }
    }
  }
  result.scale = spread(scales);
  result.offset = spread(offsets);
  return result;
}

nlohmann::ordered_json to_json(const SideStatistics& side) {
  const auto spread_json = [](const Spread& s) {
    return nlohmann::ordered_json{{"min", s.min}, {"median", s.median}, {"max", s.max}};
  };
  return {{"groups", side.num_groups},
          {"nan_groups", side.nan_groups},
          {"scale", spread_json(side.scale)},
          {"offset", spread_json(side.offset)}};
}

}  // namespace

int inspect_command(const InspectOptions& options) {
  const io::SavedCache cache = io::read_saved_cache(options.input);
  const SideStatistics k = side_statistics(cache, options.input, true);
  const SideStatistics v = side_statistics(cache, options.input, false);
  const std::int64_t tokens =
      std::accumulate(cache.kv_len.begin(), cache.kv_len.end(), std::int64_t{0});
  const auto pool_bytes = static_cast<std::int64_t>(cache.pool.size());
  const double bits = bits_per_element(cache.format, cache.head_dim, cache.page_size);

  if (options.json) {
    const nlohmann::ordered_json report{{"format", cache.format.name()},
                                        {"head_dim", cache.head_dim},
                                        {"page_size", cache.page_size},
                                        {"num_kv_heads", cache.num_kv_heads},
                                        {"batch_size", cache.batch_size},
                                        {"num_tokens", tokens},
                                        {"num_pages", cache.num_pages},
                                        {"pool_bytes", pool_bytes},
                                        {"bits_per_element", bits},
                                        {"k", to_json(k)},
                                        {"v", to_json(v)}};
    fmt::print("{}\n", report.dump(2));
    return kExitOk;
  }
  fmt::print("{}: {}, {} bits per element\n", options.input, cache.format.name(), bits);
  fmt::print("  {} requests, {} tokens, {} KV heads, head_dim {}\n", cache.batch_size, tokens,
             cache.num_kv_heads, cache.head_dim);
  fmt::print("  {} pages of {} tokens, {} bytes ({})\n", cache.num_pages, cache.page_size,
             pool_bytes, bytes_text(pool_bytes));
  fmt::print("  {:<10}{:>12}{:>12}{:>12}{:>12}\n", "", "groups", "min", "median", "max");
  const auto row = [](const char* name, std::int64_t groups, const Spread& s) {
    fmt::print("  {:<10}{:>12}{:>12.4g}{:>12.4g}{:>12.4g}\n", name, groups, s.min, s.median, s.max);
  };
  row("K scale", k.num_groups, k.scale);
  row("K offset", k.num_groups - k.nan_groups, k.offset);
  row("V scale", v.num_groups, v.scale);
  row("V offset", v.num_groups - v.nan_groups, v.offset);
  if (k.nan_groups + v.nan_groups > 0) {
    fmt::print("  {} K and {} V groups hold values that were not finite\n", k.nan_groups,
               v.nan_groups);
  }
  return kExitOk;
}

}  // namespace foscar::tool
