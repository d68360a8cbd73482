// quantize_append and dequantize: check, choose a backend, hand over.
#include "foscar/append.h"

#include "api/check.h"
#include "dispatch/backend.h"

namespace foscar {

void quantize_append(const Tensor& k, const Tensor& v, const Tensor& slot_mapping,
                     const PagedKvCache& cache, const ExecutionContext& context) {
  AppendArgs args = check_append(k, v, slot_mapping, cache);
  const Backend& backend = find_backend(k.device.type, context.backend);
  if (args.num_tokens == 0 || args.num_kv_heads == 0) return;
  args.stream = context.stream;
  backend.quantize_append(args);
}

void dequantize(const PagedKvCache& cache, const Tensor& k_out, const Tensor& v_out,
                const ExecutionContext& context) {
  DequantizeArgs args = check_dequantize(cache, k_out, v_out);
  const Backend& backend = find_backend(k_out.device.type, context.backend);
  if (args.batch_size == 0 || args.num_kv_heads == 0) return;
  args.stream = context.stream;
  backend.dequantize(args);
}

}  // namespace foscar
