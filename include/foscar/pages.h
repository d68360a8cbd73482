// Moving pages and requests around. A page is moved whole, codes and parameters of all KV heads, byte by byte: nothing is
// ever quantized again. Errors as in decode.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foscar/decode.h"
#include "foscar/layout/paged_kv.h"

namespace foscar {

struct PageCopy {
  std::int64_t from;  // page id in the source pool
  std::int64_t to;    // page id in the destination pool
};

// Copies pages between two pools of one format, head_dim, page_size and number of KV heads, or within one pool; strides
// are free, page tables are not used. Either pool may be on the CPU or on a CUDA device (both on the same one): copying to
// the host and back to other page ids offloads and restores.
//
// No page may be the destination twice, nor, within one pool (same data), be both source and destination.
//
// With a CUDA pool the copies are enqueued on context.stream, one per page; host memory must be pinned for them not to wait,
// and must stay until the stream has passed. The page ids are read before the call returns.
void copy_pages(const PagedKvCache& from, const PagedKvCache& to, std::span<const PageCopy> copies,
                const ExecutionContext& context = {});

// Which pages the requests of one cache hold, on the host. Pages may be shared between requests.
struct RequestPages {
  std::vector<std::vector<std::int32_t>> pages;  // of each request, ceil(kv_len / page_size) ids
  std::vector<std::int32_t> kv_len;              // tokens
};

struct ReorderPlan {
  RequestPages requests;  // the new ones
  std::vector<PageCopy>
      copies;  // to be done by copy_pages within the pool, before anything is appended
  std::vector<std::int32_t> released;  // pages that no new request holds, ascending
};

// Beam search and batch selection: new request i continues old request parents[i]; a parent may occur several times or not
// at all. Full pages are shared, since nothing writes to them again. A partly filled last page stays with the first child;
// each further child gets its own copy, in a page taken from the front of `free_pages`. Throws Error{kInvalidArgument}
// naming parents, free_pages, or requests where page counts and lengths disagree.
ReorderPlan plan_reorder(const RequestPages& requests, std::span<const int> parents,
                         std::span<const std::int32_t> free_pages, int page_size);

// Cuts request b to its first `kv_len` tokens and returns the pages that no request holds any more. A last page that
// becomes partly filled while another request shares it must be copied before tokens are appended; so that this cannot be
// missed, it is an Error{kInvalidArgument} here: cut to a whole page, or give the request its own copy with plan_reorder.
std::vector<std::int32_t> truncate_request(RequestPages& requests, int b, int kv_len,
                                           int page_size);

}  // namespace foscar
