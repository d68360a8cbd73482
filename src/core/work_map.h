// WorkMap: how a decode call is cut into independent pieces. One piece is (request, KV head, split
// of the tokens); all query heads of the KV head and all new tokens of the request belong to the
// piece.
//
// The pieces of request b are numbered split-major:   index = split * num_kv_heads + kv_head
//
// so pieces that run at the same time read neighbouring heads of the same pages. Splits have a
// fixed number of tokens that depends on nothing but the problem's shape: a request's bits are the
// same whatever its neighbours are and however many threads or blocks do the work. Partial results
// are merged in the order of the splits.
#pragma once

#include <cstdint>

#include "foscar/hd.h"

namespace foscar {

struct WorkItem {
  int request_idx;
  int kv_head_idx;
  int split_idx;
  int kv_begin;  // first token
  int kv_end;    // one past the last token
};

struct WorkMap {
  int num_kv_heads;
  int chunk_tokens;  // tokens per split, > 0

  // Splits of a request of kv_len tokens; an empty request has none.
  FOSCAR_HD constexpr int num_splits(int kv_len) const {
    return kv_len <= 0 ? 0 : (kv_len - 1) / chunk_tokens + 1;
  }
  FOSCAR_HD constexpr std::int64_t num_items(int kv_len) const {
    return static_cast<std::int64_t>(num_splits(kv_len)) * num_kv_heads;
  }
  // Pre-condition: 0 <= index < num_items(kv_len).
  FOSCAR_HD constexpr WorkItem item(int request_idx, int kv_len, std::int64_t index) const {
    const int split = static_cast<int>(index / num_kv_heads);
    const int begin = split * chunk_tokens;
    const int rest = kv_len - begin;
    return {request_idx, static_cast<int>(index % num_kv_heads), split, begin,
            begin + (rest < chunk_tokens ? rest : chunk_tokens)};
  }
};

// The request that owns piece `index` of the whole call, where first_item[b] is the number of
// pieces before request b and first_item[batch_size] > index: the last b with first_item[b] <=
// index.
FOSCAR_HD constexpr int request_of_item(const std::int64_t* first_item, int batch_size,
                                        std::int64_t index) {
  int low = 0;
  int high = batch_size - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_item[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

static_assert(WorkMap{8, 1024}.num_splits(0) == 0 && WorkMap{8, 1024}.num_splits(1025) == 2);
static_assert(WorkMap{8, 1024}.item(0, 1025, 9).kv_head_idx == 1 &&
              WorkMap{8, 1024}.item(0, 1025, 9).kv_end == 1025);

}  // namespace foscar
