#include "backends/cuda/dequantize/rows.cuh"

namespace foscar::cuda {
std::span<const DequantizeKernel> dequantize_kernels_bf16() {
  return dequantize_entries<DType::kBF16>();
}
}  // namespace foscar::cuda
