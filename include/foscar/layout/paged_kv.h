// Paged caches as the caller hands them over: a pool of pages and a page table. Both table forms of the field are
// accepted; inside the library there is one, PageTableView, which host code and kernels read alike.
#pragma once

#include <cstdint>

#include "foscar/format/kv_format.h"
#include "foscar/hd.h"
#include "foscar/tensor.h"

namespace foscar {

// Which pages a request's tokens lie in: exactly one of the two forms. All tensors int32, contiguous, on the device
// of the pool; they are read when the work runs, not when the call returns.
struct PageTable {
  // CSR. Request b owns pages kv_indices[kv_indptr[b] .. kv_indptr[b+1]); the last one holds
  // kv_last_page_len[b] tokens (1 .. page_size). A request without pages is empty.
  Tensor kv_indptr{};         // [batch_size + 1]
  Tensor kv_indices{};        // [nnz_pages]
  Tensor kv_last_page_len{};  // [batch_size]

  // Block table. Request b owns the first ceil(kv_len[b] / page_size) entries of row b; the rest is never read.
  Tensor block_table{};  // [batch_size, max_pages], rows may be strided
  Tensor kv_len{};       // [batch_size], tokens; 0 is an empty request
};

// A low-bit cache of one layer.
struct PagedKvCache {
  KvFormat format{};
  int head_dim = 0;
  int page_size = 0;  // tokens
  // uint8 [num_pages, num_kv_heads, page_head_bytes]; page and head strides multiples of 16
  Tensor pool{};
  PageTable table{};
};

// A cache of unquantized rows in pages: the honest baseline, and the kernel for high-precision windows.
struct PagedDenseKv {
  Tensor k{};  // BF16 or FP16 [num_pages, num_kv_heads, page_size, head_dim], innermost contiguous
  Tensor v{};  // like k
  PageTable table{};
};

// The internal form of a page table; raw pointers, valid on the device of the cache.
struct PageTableView {
  const std::int32_t* indptr;  // [batch_size + 1], or null: block-table form
  const std::int32_t* pages;   // kv_indices [nnz_pages], or block_table [batch_size, row_stride]
  const std::int32_t* lens;    // kv_last_page_len or kv_len [batch_size]
  std::int64_t row_stride;     // elements between rows of the block table
  int page_size;               // tokens
  std::int64_t num_entries;    // from `pages` to the last request's last entry: may be prefetched

  // Tokens of request b.
  FOSCAR_HD int kv_len(int b) const {
    if (indptr == nullptr) return lens[b];
    const int num_pages = indptr[b + 1] - indptr[b];
    return num_pages <= 0 ? 0 : (num_pages - 1) * page_size + lens[b];
  }
  // The page ids of request b; entries 0 .. ceil(kv_len / page_size) - 1 may be read, no others.
  FOSCAR_HD const std::int32_t* row(int b) const {
    return pages + (indptr == nullptr ? b * row_stride : static_cast<std::int64_t>(indptr[b]));
  }
};

}  // namespace foscar
