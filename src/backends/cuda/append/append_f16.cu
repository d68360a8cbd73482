#include "backends/cuda/append/rows.cuh"

namespace foscar::cuda {
std::span<const AppendKernel> append_kernels_f16() { return append_entries<DType::kF16>(); }
}  // namespace foscar::cuda
