#include "backends/cuda/dequantize/dequantize.h"

#include <limits>
#include <string>

#include "backends/cuda/append/wide_rows.h"
#include "backends/cuda/dequantize/entry.h"
#include "backends/cuda/launch.h"
#include "foscar/error.h"

namespace foscar::cuda {
namespace {

std::span<const DequantizeKernel> kernels_for(DType dtype) {
  switch (dtype) {
    case DType::kF32: return dequantize_kernels_f32();
    case DType::kF16: return dequantize_kernels_f16();
    default: return dequantize_kernels_bf16();
  }
}

const DequantizeKernel& find_dequantize_kernel(const DequantizeArgs& args) {
  const PageLayout& layout = args.layout;
  if (layout.k.axis != QuantAxis::kToken || layout.v.axis != QuantAxis::kToken) {
    throw Error(ErrorKind::kUnsupported,
                "format: channel-wise groups; the cuda backend reads token-wise ones only");
  }
  const bool wide =
      has_wide_rows(args.k, args.k_batch_stride) && has_wide_rows(args.v, args.v_batch_stride);
  for (const DequantizeKernel& kernel : kernels_for(args.k.dtype)) {
    if (kernel.head_dim == layout.head_dim && (wide || !kernel.wide)) return kernel;
  }
  throw Error(ErrorKind::kUnsupported, "head_dim: got " + std::to_string(layout.head_dim) +
                                           ", the cuda backend dequantizes 64, 128, 256");
}

}  // namespace

void dequantize(const DequantizeArgs& args) {
  if (args.batch_size == 0 || args.max_kv_len == 0) return;
  const DequantizeKernel& kernel = find_dequantize_kernel(args);
  const std::int64_t token_blocks =
      (args.max_kv_len + kernel.tokens_per_block - 1) / kernel.tokens_per_block;
  const std::int64_t num_blocks = token_blocks * args.batch_size * args.num_kv_heads;
  if (args.max_kv_len > std::numeric_limits<int>::max() ||
      num_blocks > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::kInvalidArgument,
                "k_out: shape for " + std::to_string(args.batch_size) + " requests of " +
                    std::to_string(args.max_kv_len) + " tokens and " +
                    std::to_string(args.num_kv_heads) + " KV heads needs " +
                    std::to_string(num_blocks) + " thread blocks, at most 2147483647 are allowed");
  }
  DequantizeKernelArgs kernel_args{.call = args,
                                   .token_blocks = static_cast<unsigned>(token_blocks),
                                   .page_log2 = log2_of(args.layout.page_size),
                                   .k_group_log2 = log2_of(args.layout.k.group_size),
                                   .v_group_log2 = log2_of(args.layout.v.group_size)};
  const DeviceScope scope(args.device_index);
  void* parameters[] = {&kernel_args};
  check(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(num_blocks)),
                         dim3(kDequantizeThreads), parameters, 0,
                         static_cast<cudaStream_t>(args.stream)),
        "dequantize launch");
}

}  // namespace foscar::cuda
