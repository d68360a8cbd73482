#include "backends/cuda/decode/instances/rows.cuh"

namespace foscar::cuda {
std::span<const KernelEntry> decode_kernels_k2v4() { return decode_entries<2, 4>(); }
}  // namespace foscar::cuda
