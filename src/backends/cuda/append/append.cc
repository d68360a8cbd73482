#include "backends/cuda/append/append.h"

#include <string>

#include "backends/cuda/append/entry.h"
#include "backends/cuda/append/wide_rows.h"
#include "backends/cuda/launch.h"
#include "foscar/error.h"

namespace foscar::cuda {
namespace {

constexpr std::int64_t kMaxGridY = 65535;

std::span<const AppendKernel> kernels_for(DType dtype) {
  switch (dtype) {
    case DType::kF32: return append_kernels_f32();
    case DType::kF16: return append_kernels_f16();
    default: return append_kernels_bf16();
  }
}

const AppendKernel& find_append_kernel(const AppendArgs& args) {
  const PageLayout& layout = args.layout;
  if (layout.k.axis != QuantAxis::kToken || layout.v.axis != QuantAxis::kToken) {
    throw Error(ErrorKind::kUnsupported,
                "format: channel-wise groups; the cuda backend quantizes token-wise ones only");
  }
  const bool one_group = layout.k.num_groups == 1 && layout.v.num_groups == 1;
  const bool wide = has_wide_rows(args.k) && has_wide_rows(args.v);
  for (const AppendKernel& kernel : kernels_for(args.k.dtype)) {
    if (kernel.head_dim != layout.head_dim || (kernel.one_group && !one_group) ||
        (kernel.wide && !wide))
      continue;
    return kernel;
  }
  throw Error(ErrorKind::kUnsupported, "head_dim: got " + std::to_string(layout.head_dim) +
                                           ", the cuda backend quantizes 64, 128, 256");
}

}  // namespace

void quantize_append(const AppendArgs& args) {
  if (args.num_tokens == 0) return;
  const AppendKernel& kernel = find_append_kernel(args);
  AppendKernelArgs kernel_args{.call = args,
                               .num_slots = args.pool.num_pages * args.layout.page_size,
                               .page_log2 = log2_of(args.layout.page_size),
                               .k_group_log2 = log2_of(args.layout.k.group_size),
                               .v_group_log2 = log2_of(args.layout.v.group_size)};
  // Heads first: the blocks of neighbouring heads read neighbouring memory at the same time.
  const std::int64_t token_blocks =
      (args.num_tokens + kernel.tokens_per_block - 1) / kernel.tokens_per_block;
  const std::int64_t grid_z = (token_blocks + kMaxGridY - 1) / kMaxGridY;
  const dim3 grid(static_cast<unsigned>(args.num_kv_heads),
                  static_cast<unsigned>((token_blocks + grid_z - 1) / grid_z),
                  static_cast<unsigned>(grid_z));
  const DeviceScope scope(args.device_index);
  void* parameters[] = {&kernel_args};
  check(cudaLaunchKernel(kernel.function, grid, dim3(kAppendThreads), parameters, 0,
                         static_cast<cudaStream_t>(args.stream)),
        "quantize_append launch");
}

}  // namespace foscar::cuda
