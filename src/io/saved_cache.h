// A low-bit cache as a file: a safetensors file with three tensors and six metadata entries.
//
//     pool         U8   [num_pages, num_kv_heads, page_head_bytes]   as in memory,
//     layout/page_layout.h block_table  I32  [batch_size, max_pages]                      -1 beyond
//     a request's pages kv_len       I32  [batch_size]                                 tokens
//     __metadata__      foscar_cache_version "1", format, head_dim, page_size, num_kv_heads,
//     num_pages
//
// Any other version, entry or tensor is an error: a reader that ignored what it does not know would
// hand out wrong numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "foscar/format/kv_format.h"
#include "foscar/layout/page_layout.h"

namespace foscar::io {

struct SavedCache {
  KvFormat format;
  int head_dim = 0;
  int page_size = 0;  // tokens
  int num_kv_heads = 0;
  std::int64_t num_pages = 0;
  std::int64_t batch_size = 0;
  std::int64_t max_pages = 0;             // columns of the block table
  std::vector<std::uint8_t> pool;         // [num_pages, num_kv_heads, page_head_bytes], bytes
  std::vector<std::int32_t> block_table;  // [batch_size, max_pages]
  std::vector<std::int32_t> kv_len;       // [batch_size], tokens

  PageLayout layout() const { return make_page_layout(format, head_dim, page_size); }
  // The block of (page, KV head): layout().page_head_bytes bytes.
  const std::uint8_t* block(std::int64_t page, int head) const {
    return pool.data() + (page * num_kv_heads + head) * layout().page_head_bytes;
  }
};

// Throws Error{kFile} when the file cannot be written.
void write_saved_cache(const std::string& path, const SavedCache& cache);

// Reads and checks everything that indexes something: shapes, lengths, and every page id in use.
// The stored scales and codes are any bytes.
SavedCache read_saved_cache(const std::string& path);

}  // namespace foscar::io
