// The one place where arguments of the public functions are checked. Each function takes what the
// caller gave and returns what a backend takes: raw pointers and strides that may be followed
// without another look. Order of the checks, over all arguments: given, device, dtype, layout
// (rank, strides, alignment), shape, range. The first that fails throws Error naming the argument,
// what was given and what is allowed; nothing was written by then.
//
// Called by decode.cc and append.cc only. Primitives are in check_tensor.h, page tables in
// check_table.h.
#pragma once

#include <cstdint>

#include "dispatch/backend.h"
#include "foscar/append.h"
#include "foscar/decode.h"

namespace foscar {

// Workspace and stream stay unset in the results; see check_workspace.
DecodeArgs check_decode(const DecodeParams& params);
DenseDecodeArgs check_decode_dense(const DecodeParams& params, const PagedDenseKv& kv);
DecodeShape check_workspace_query(int max_batch_size, int qo_len, int num_qo_heads,
                                  int num_kv_heads, int head_dim);
MergeArgs check_merge(const Tensor& v, const Tensor& lse, const Tensor& o, const Tensor& lse_out);
AppendArgs check_append(const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
                        const PagedKvCache& cache);
DequantizeArgs check_dequantize(const PagedKvCache& cache, const Tensor& k_out,
                                const Tensor& v_out);

// CUDA only: at least `needed` bytes, 256-byte aligned.
void check_workspace(const ExecutionContext& context, std::int64_t needed, DeviceType device);

}  // namespace foscar
