// What the api layer hands down and what a backend offers. The *Args structs are plain and already checked: raw pointers,
// strides in elements unless they say bytes. A backend is a table of functions; src/dispatch/registry.cc lists the tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "foscar/backends.h"
#include "foscar/decode.h"
#include "foscar/layout/page_layout.h"
#include "foscar/layout/paged_kv.h"
#include "foscar/pages.h"

namespace foscar {

// Rows of q, o: element (b, t, h, c) at data + b*batch_stride + t*token_stride + h*head_stride + c.
struct RowView {
  void* data;
  DType dtype;
  std::int64_t batch_stride;
  std::int64_t token_stride;  // new tokens of one request
  std::int64_t head_stride;
};

// Block (page, KV head) at data + page*page_stride + head*head_stride, all bytes.
struct PoolView {
  std::uint8_t* data;
  std::int64_t page_stride;
  std::int64_t head_stride;
  std::int64_t num_pages;
};

struct DecodeShape {
  int batch_size;
  int qo_len;
  int num_qo_heads;
  int num_kv_heads;
  int head_dim;
  FOSCAR_HD int gqa_group_size() const { return num_qo_heads / num_kv_heads; }
};

// What changes logits, or which of them count, beyond `causal`; core/visible.h says what a row sees.
struct ScoreModifiers {
  int window_left;        // keys; negative: no limit
  float logits_soft_cap;  // 0: off
  const float* sinks;     // [num_qo_heads], natural-log units, or null
  const std::uint8_t*
      mask;  // [qo_len, qo_len] of request b at mask + b * mask_batch_stride, or null
  std::int64_t mask_batch_stride;  // bytes; 0: one mask for all requests

  // Row i of request b: element j is not 0 where the row sees new token j.
  FOSCAR_HD const std::uint8_t* mask_row(int b, int i, int qo_len) const {
    return mask + b * mask_batch_stride + static_cast<std::int64_t>(i) * qo_len;
  }
};

struct DecodeArgs {
  DecodeShape shape;
  RowView q;
  RowView o;
  float* lse;  // [batch_size, qo_len, num_qo_heads] or null
  PoolView pool;
  PageLayout layout;
  PageTableView table;
  float sm_scale;
  bool causal;
  ScoreModifiers modifiers;
  int kv_chunk_size;  // tokens; 0: free choice
  void* workspace;
  std::int64_t workspace_bytes;
  void* stream;
  int device_index;
};

// Element (page, head, slot, c) at data + page*page_stride + head*head_stride + slot*token_stride + c, elements.
struct DensePoolView {
  const void* data;
  DType dtype;
  std::int64_t page_stride;
  std::int64_t head_stride;
  std::int64_t token_stride;
};

// `decode` describes everything but the cache; its pool and layout are unused.
struct DenseDecodeArgs {
  DecodeArgs decode;
  DensePoolView k;
  DensePoolView v;
};

// Element (token, head, c) at data + token*token_stride + head*head_stride + c.
struct TokenRows {
  void* data;
  DType dtype;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

struct AppendArgs {
  TokenRows k;
  TokenRows v;
  const void* slot_mapping;  // [num_tokens], int32 or int64
  bool slots_are_64bit;
  std::int64_t num_tokens;
  int num_kv_heads;
  PoolView pool;
  PageLayout layout;
  void* stream;
  int device_index;

  FOSCAR_HD std::int64_t slot(std::int64_t token) const {
    return slots_are_64bit ? static_cast<const std::int64_t*>(slot_mapping)[token]
                           : static_cast<const std::int32_t*>(slot_mapping)[token];
  }
};

// Row (b, t) of k is at data + b*k_batch_stride + t*token_stride + ...
struct DequantizeArgs {
  TokenRows k;
  TokenRows v;
  std::int64_t k_batch_stride;
  std::int64_t v_batch_stride;
  std::int64_t max_kv_len;
  int batch_size;
  int num_kv_heads;
  PoolView pool;
  PageLayout layout;
  PageTableView table;
  void* stream;
  int device_index;
};

struct MergeArgs {
  const void* v;     // [num_states, num_rows, num_heads, head_dim], dtype
  const float* lse;  // [num_states, num_rows, num_heads]
  void* o;           // [num_rows, num_heads, head_dim], dtype
  float* lse_out;    // [num_rows, num_heads] or null
  DType dtype;
  int num_states;
  std::int64_t num_rows;
  int num_heads;
  int head_dim;
  void* stream;
  int device_index;
};

// rotate_rows: row (b, t, h) of x becomes row (b, t, h) of out.
struct RotateArgs {
  RowView x;
  RowView out;
  int batch_size;
  int num_tokens;  // per batch entry
  int num_heads;
  int head_dim;
  int heads_per_matrix;  // head h uses matrix h / heads_per_matrix
  // Element (i, j) of matrix m at matrix + m*matrix_stride + i*row_stride + j*column_stride; null: block Hadamard.
  const void* matrix;
  DType matrix_dtype;
  std::int64_t matrix_stride;
  std::int64_t row_stride;
  std::int64_t column_stride;
  int hadamard_order;
  int clip_index;  // core/clip.h; negative: no clipping
  void* stream;
  int device_index;
};

// Page ids are checked; the rows of one page are its KV heads' blocks.
struct CopyPagesArgs {
  PoolView from;
  PoolView to;
  bool from_cuda;  // else host memory
  bool to_cuda;
  std::span<const PageCopy> copies;
  int num_kv_heads;
  int page_head_bytes;
  void* stream;
  int device_index;
};

struct Backend {
  std::string_view name;
  DeviceType device;
  // Empty if this machine can run it, else why not.
  std::string (*unavailable_reason)();
  std::string_view description;
  Support (*supports)(const DecodeDesc&);
  void (*decode)(const DecodeArgs&);
  void (*decode_dense)(const DenseDecodeArgs&);
  void (*quantize_append)(const AppendArgs&);
  void (*dequantize)(const DequantizeArgs&);
  void (*merge_states)(const MergeArgs&);
  // Bytes, for any lengths of at most shape.batch_size requests.
  std::int64_t (*decode_workspace_bytes)(const DecodeShape& shape, int device_index);
  // Null where the backend does not offer it.
  void (*rotate_rows)(const RotateArgs&) = nullptr;
  // CUDA backends only: host memory needs no backend.
  void (*copy_pages)(const CopyPagesArgs&) = nullptr;
};

// One per backend folder; each returns a constant table, best variant first.
std::span<const Backend> reference_backends();
std::span<const Backend> cpu_backends();
std::span<const Backend> cuda_backends();

// Every table, in the order of list_backends().
std::span<const Backend* const> all_backends();
// The first available backend of `device`, whatever the environment says; throws Error{kUnsupported} if there is none.
const Backend& best_backend(DeviceType device);
// The backend of resolve_backend().
const Backend& find_backend(DeviceType device, std::string_view requested);

}  // namespace foscar
