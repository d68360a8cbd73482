// Writing a low-bit cache and reading it back as numbers. Errors as in decode.h.
#pragma once

#include "foscar/decode.h"
#include "foscar/layout/paged_kv.h"
#include "foscar/tensor.h"

namespace foscar {

// Quantizes new K/V rows into their slots.
//   k, v          BF16, FP16 or FP32 [num_tokens, num_kv_heads, head_dim], innermost contiguous
//   slot_mapping  int32 or int64 [num_tokens]: page * page_size + slot in the page; a negative entry is skipped
//                 (padding). No slot may appear twice.
//   cache         format, head_dim, page_size and pool are used; the page table is not
// All backends write the same bytes. Only the row's own codes and parameters change. On the CPU a slot beyond the
// pool is an Error; on a CUDA device such an entry is skipped, because the host never sees it.
void quantize_append(const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
                     const PagedKvCache& cache, const ExecutionContext& context = {});

// Reads every request's rows back: scale * code + offset, one FP32 fused multiply-add, rounded to the type of k_out.
//   k_out, v_out  BF16, FP16 or FP32 [batch_size, max_kv_len, num_kv_heads, head_dim], innermost contiguous;
//                 rows at and beyond a request's kv_len are not written
void dequantize(const PagedKvCache& cache, const Tensor& k_out, const Tensor& v_out,
                const ExecutionContext& context = {});

}  // namespace foscar
