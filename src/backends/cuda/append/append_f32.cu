#include "backends/cuda/append/rows.cuh"

namespace foscar::cuda {
std::span<const AppendKernel> append_kernels_f32() { return append_entries<DType::kF32>(); }
}  // namespace foscar::cuda
