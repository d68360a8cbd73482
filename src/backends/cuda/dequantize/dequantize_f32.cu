#include "backends/cuda/dequantize/rows.cuh"

namespace foscar::cuda {
std::span<const DequantizeKernel> dequantize_kernels_f32() {
  return dequantize_entries<DType::kF32>();
}
}  // namespace foscar::cuda
