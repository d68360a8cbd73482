// decode, decode_dense, merge_states, decode_workspace_bytes: check, choose a backend, hand over.
#include "foscar/decode.h"

#include "api/check.h"
#include "dispatch/backend.h"
#include "foscar/error.h"

namespace foscar {
namespace {

void use_context(DecodeArgs& args, const ExecutionContext& context, const Backend& backend) {
  check_workspace(context, backend.decode_workspace_bytes(args.shape, args.device_index),
                  backend.device);
  args.workspace = context.workspace;
  args.workspace_bytes = context.workspace_bytes;
  args.stream = context.stream;
}

void require_support(const Backend& backend, const DecodeDesc& desc) {
  const Support support = backend.supports(desc);
  if (!support.ok) throw Error(ErrorKind::kUnsupported, support.reason);
}

}  // namespace

void decode(const DecodeParams& params, const ExecutionContext& context) {
  DecodeArgs args = check_decode(params);
  const Backend& backend = find_backend(params.q.device.type, context.backend);
  require_support(backend, {.format = params.cache.format,
                            .head_dim = params.cache.head_dim,
                            .page_size = params.cache.page_size,
                            .num_qo_heads = args.shape.num_qo_heads,
                            .num_kv_heads = args.shape.num_kv_heads,
                            .qo_len = args.shape.qo_len,
                            .q_dtype = params.q.dtype,
                            .window_left = params.window_left >= 0,
                            .mask = params.mask.defined(),
                            .logits_soft_cap = params.logits_soft_cap > 0,
                            .sinks = params.sinks.defined()});
  if (args.shape.batch_size == 0) return;
  use_context(args, context, backend);
  backend.decode(args);
}

void decode_dense(const DecodeParams& params, const PagedDenseKv& kv,
                  const ExecutionContext& context) {
  DenseDecodeArgs args = check_decode_dense(params, kv);
  const Backend& backend = find_backend(params.q.device.type, context.backend);
  if (args.decode.shape.batch_size == 0) return;
  use_context(args.decode, context, backend);
  backend.decode_dense(args);
}

std::int64_t decode_workspace_bytes(int max_batch_size, int qo_len, int num_qo_heads,
                                    int num_kv_heads, int head_dim, Device device) {
  const DecodeShape shape =
      check_workspace_query(max_batch_size, qo_len, num_qo_heads, num_kv_heads, head_dim);
  if (device.type == DeviceType::kCpu) return 0;
  // Whatever FOSCAR_FORCE_BACKEND says: the call may name its backend.
  return best_backend(device.type).decode_workspace_bytes(shape, device.index);
}

void merge_states(const Tensor& v, const Tensor& lse, const Tensor& o, const Tensor& lse_out,
                  const ExecutionContext& context) {
  MergeArgs args = check_merge(v, lse, o, lse_out);
  const Backend& backend = find_backend(v.device.type, context.backend);
  if (args.num_rows == 0 || args.num_heads == 0) return;
  args.stream = context.stream;
  backend.merge_states(args);
}

}  // namespace foscar
