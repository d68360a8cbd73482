#include "backends/cuda/append/rows.cuh"

namespace foscar::cuda {
std::span<const AppendKernel> append_kernels_bf16() { return append_entries<DType::kBF16>(); }
}  // namespace foscar::cuda
