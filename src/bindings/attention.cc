// The functions that compute. Argument order is that of the Python side (python/foscar/_library.py names them for messages);
// every check is the C++ API's own.
#include <tvm/ffi/function.h>

#include "bindings/tensors.h"

namespace foscar::bindings {
namespace {

void run_decode(ffi::TensorView q, ffi::TensorView pool, ffi::String format, std::int64_t head_dim,
                std::int64_t page_size, OptionalTensor block_table, OptionalTensor kv_len,
                OptionalTensor kv_indptr, OptionalTensor kv_indices,
                OptionalTensor kv_last_page_len, ffi::TensorView o, OptionalTensor lse,
                OptionalTensor workspace, double sm_scale, bool causal, std::int64_t kv_chunk_size,
                ffi::String backend) {
  translated([&] {
    const DecodeParams params{
        .q = view("q", q),
        .cache = cache(pool, format, head_dim, page_size,
                       table(block_table, kv_len, kv_indptr, kv_indices, kv_last_page_len)),
        .o = view("o", o),
        .lse = view("lse", lse),
        .sm_scale = sm_scale,
        .causal = causal,
        .kv_chunk_size = narrow("kv_chunk_size", kv_chunk_size)};
    ExecutionContext where = context(params.q, {backend.data(), backend.size()});
    use_workspace(where, view("workspace", workspace), params.q.device);
    decode(params, where);
  });
}

void run_quantize_append(ffi::TensorView k, ffi::TensorView v, ffi::TensorView slot_mapping,
                         ffi::TensorView pool, ffi::String format, std::int64_t head_dim,
                         std::int64_t page_size, ffi::String backend) {
  translated([&] {
    const Tensor keys = view("k", k);
    quantize_append(keys, view("v", v), view("slot_mapping", slot_mapping),
                    cache(pool, format, head_dim, page_size, {}),
                    context(keys, {backend.data(), backend.size()}));
  });
}

void run_dequantize(ffi::TensorView pool, ffi::String format, std::int64_t head_dim,
                    std::int64_t page_size, OptionalTensor block_table, OptionalTensor kv_len,
                    OptionalTensor kv_indptr, OptionalTensor kv_indices,
                    OptionalTensor kv_last_page_len, ffi::TensorView k_out, ffi::TensorView v_out,
                    ffi::String backend) {
  translated([&] {
    const PagedKvCache source =
        cache(pool, format, head_dim, page_size,
              table(block_table, kv_len, kv_indptr, kv_indices, kv_last_page_len));
    dequantize(source, view("k_out", k_out), view("v_out", v_out),
               context(source.pool, {backend.data(), backend.size()}));
  });
}

void run_merge_states(ffi::TensorView v, ffi::TensorView lse, ffi::TensorView o,
                      OptionalTensor lse_out, ffi::String backend) {
  translated([&] {
    const Tensor values = view("v", v);
    merge_states(values, view("lse", lse), view("o", o), view("lse_out", lse_out),
                 context(values, {backend.data(), backend.size()}));
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, run_decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(quantize_append, run_quantize_append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dequantize, run_dequantize);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(merge_states, run_merge_states);

}  // namespace foscar::bindings
