// The parts that the entries of check.cc share, one struct per group of arguments and one function
// per phase, so that an entry reads as the list of phases. Nothing outside check*.cc includes this.
#pragma once

#include <cstdint>

#include "api/check_table.h"
#include "api/check_tensor.h"
#include "dispatch/backend.h"
#include "foscar/decode.h"

namespace foscar {

// q, o and lse of a decode.
struct QueryChecks {
  const DecodeParams& params;

  void given() const;
  void devices() const;
  void dtypes() const;
  void layout() const;
  // Needs the cache's heads and head_dim.
  DecodeShape shape(std::int64_t num_kv_heads, int head_dim) const;
  void range(int page_size) const;
  // The query side of the arguments; pool, layout and table are left to the caller.
  DecodeArgs args(const DecodeShape& shape) const;
};

// The pool of a low-bit cache.
struct PoolChecks {
  const PagedKvCache& cache;

  void given() const;
  void dtypes() const;
  void layout() const;
  // The block layout; also refuses a format, head_dim or page_size that does not exist.
  PageLayout shape() const;
  std::int64_t num_pages() const { return cache.pool.shape[0]; }
  int num_kv_heads() const;
  PoolView view() const;
};

// Rows [.., num_kv_heads, head_dim] of FP32, FP16 or BF16; `token_dim` is the dimension that counts
// tokens.
TokenRows token_rows(const Tensor& t, int token_dim);

}  // namespace foscar
