#include "backends/cuda/decode/instances/rows.cuh"

namespace foscar::cuda {
std::span<const KernelEntry> decode_kernels_k2v2() { return decode_entries<2, 2>(); }
}  // namespace foscar::cuda
