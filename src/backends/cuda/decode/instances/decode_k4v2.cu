#include "backends/cuda/decode/instances/rows.cuh"

namespace foscar::cuda {
std::span<const KernelEntry> decode_kernels_k4v2() { return decode_entries<4, 2>(); }
}  // namespace foscar::cuda
