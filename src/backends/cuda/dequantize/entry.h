// The compiled dequantize kernels as rows of data, one file of rows per type of the output.
#pragma once

#include <array>
#include <span>

#include "dispatch/backend.h"

namespace foscar::cuda {

inline constexpr int kDequantizeThreads = 256;

// What every instance gets; passed by value.
struct DequantizeKernelArgs {
  DequantizeArgs call;
  unsigned token_blocks;  // blocks per (request, KV head)
  int page_log2;          // log2(page_size)
  int k_group_log2;       // log2(group_size), channels
  int v_group_log2;
};

struct DequantizeKernel {
  int head_dim;
  bool wide;  // needs rows whose starts are multiples of 16 bytes
  int tokens_per_block;
  const void* function;  // __global__ void(DequantizeKernelArgs)
};

std::span<const DequantizeKernel> dequantize_kernels_f32();
std::span<const DequantizeKernel> dequantize_kernels_f16();
std::span<const DequantizeKernel> dequantize_kernels_bf16();

}  // namespace foscar::cuda
