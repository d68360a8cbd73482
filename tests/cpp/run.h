// One call of a backend under test on a problem: upload, call, download. Whatever must not be read
// or written is poisoned: table entries beyond a request's pages are 2^31-1, outputs start as NaN,
// padding too and is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness.h"
#include "problem.h"

namespace foscar::test {

struct RunOptions {
  bool csr = false;
  bool causal = true;
  int kv_chunk_size = 0;
  double sm_scale = 0.0;
  int window_left = -1;
  double soft_cap = 0.0;
  std::vector<float> sinks{};        // [num_qo_heads], or none
  std::vector<std::uint8_t> mask{};  // [qo_len, qo_len], [batch, qo_len, qo_len], or none
  std::optional<DType> o_dtype =
      std::nullopt;              // default: FP32 on the CPU, q_dtype on a CUDA device
  int q_row_padding = 0;         // elements between the heads of one token and the next token's
  int o_row_padding = 0;         // likewise, filled with NaN and to be found untouched
  int page_padding = 0;          // bytes after each page of the pool, poisoned
  bool heads_outermost = false;  // pool laid out [num_kv_heads, num_pages, bytes]
  std::int32_t table_filler = 0x7fffffff;
  int extra_columns = 2;        // of the block table, beyond the longest request
  std::int64_t odd_stride = 0;  // given to every dimension of extent 1 if not 0
  // Instead of new zeros of the needed size; as other calls left it.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

struct Result {
  std::vector<float> o;    // [batch, qo_len, num_qo_heads, head_dim]
  std::vector<float> lse;  // [batch, qo_len, num_qo_heads]
};
// Equal bit for bit.
bool same_bits(const Result& a, const Result& b);

Result run_decode(const TestBackend& backend, const HostCache& cache, const std::vector<float>& q,
                  const RunOptions& options = {});
// The dtype that run_decode gives to o.
DType output_dtype(const TestBackend& backend, const Geometry& g, const RunOptions& options);

// The cache as arguments of the library, on the place of a backend; owns the memory.
struct PlacedCache {
  Buffer pool, indptr, indices, last_page_len, block_table, kv_len;
  PagedKvCache cache;
};
PlacedCache place_cache(Place& place, const HostCache& cache, const RunOptions& options);

// K and V rows [tokens, num_kv_heads, head_dim], and where they go.
struct AppendInput {
  std::vector<float> k, v;
  std::vector<std::int64_t> slots;
  DType dtype = DType::kF32;  // of k and v
  bool slots_are_32bit = false;
  int row_padding = 0;  // elements after the heads of each token, 1e6 each
};
// The pool after the call, starting from that of `cache`.
std::vector<std::uint8_t> run_append(const TestBackend& backend, const HostCache& cache,
                                     const AppendInput& input);

// [batch, max kv_len, num_kv_heads, head_dim] each; NaN where nothing was written.
struct DequantizedRows {
  std::vector<float> k, v;
};
DequantizedRows run_dequantize(const TestBackend& backend, const HostCache& cache,
                               DType dtype = DType::kF32, const RunOptions& options = {});

}  // namespace foscar::test
