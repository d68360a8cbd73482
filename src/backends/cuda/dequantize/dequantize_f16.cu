#include "backends/cuda/dequantize/rows.cuh"

namespace foscar::cuda {
std::span<const DequantizeKernel> dequantize_kernels_f16() {
  return dequantize_entries<DType::kF16>();
}
}  // namespace foscar::cuda
