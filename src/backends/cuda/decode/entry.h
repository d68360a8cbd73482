// The compiled decode kernels as rows of data. Each instances/*.cu file returns the rows of one pair of bit widths.
#pragma once

#include <span>

#include "backends/cuda/decode/config.cuh"

namespace foscar::cuda {

struct KernelEntry {
  int k_bits;
  int v_bits;
  int head_dim;
  int column_tiles;                      // 4-row tiles per warp
  int groups;                            // parameter groups kept apart: 1, or head_dim / 32
  int max_warps;                         // per block, by registers
  const void* function;                  // __global__ void(DecodeKernelArgs)
  int (*fixed_shared_bytes)(int warps);  // dynamic shared memory without the rings

  constexpr int rows_per_warp() const { return column_tiles * kRowsPerColumnTile; }
};

std::span<const KernelEntry> decode_kernels_k2v2();
std::span<const KernelEntry> decode_kernels_k4v4();
std::span<const KernelEntry> decode_kernels_k4v2();
std::span<const KernelEntry> decode_kernels_k2v4();

}  // namespace foscar::cuda
