// From rows of keys and values to pages: which page holds which token, and the two caches (low-bit
// and BF16) that a command decodes over. Both caches share one page table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device_arena.h"
#include "foscar/layout/paged_kv.h"
#include "kv_input.h"

namespace foscar::tool {

enum class PageOrder {
  kSequential,  // page ids count up; unused table entries are -1: for files
  kShuffled,    // as after days of serving; unused table entries are no valid page: for measuring
};

struct PagePlan {
  int page_size = 0;           // tokens
  std::int64_t num_pages = 0;  // all in use, except that a plan without tokens has one unused page
  std::int64_t max_pages = 0;  // columns of the block table
  std::vector<std::int32_t> block_table;  // [batch_size, max_pages]
  std::vector<std::int64_t>
      slot_mapping;  // [batch_size, max_kv_len]: page * page_size + slot; -1 beyond kv_len
};

// Throws unless a cache of this format can hold the input: Error{kFile} where the input's head_dim
// is to blame and `path` is not empty, else Error{kInvalidArgument}.
void check_format(const KvFormat& format, const KvInput& input, int page_size,
                  const std::string& path);

// Pre-condition: check_format().
PagePlan plan_pages(const KvInput& input, int page_size, PageOrder order);

// Quantizes the input into a new pool whose unused bytes are all `fill` (0xFF reads as NaN
// parameters).
PagedKvCache make_quantized_cache(DeviceArena& arena, const KvInput& input, const PagePlan& plan,
                                  const KvFormat& format, const std::string& backend,
                                  std::uint8_t fill);

// The input rounded to BF16 in pages; unused slots hold NaN.
PagedDenseKv make_dense_cache(DeviceArena& arena, const KvInput& input, const PagePlan& plan);

}  // namespace foscar::tool
