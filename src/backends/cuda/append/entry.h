// The compiled append kernels as rows of data, one file of rows per type of the input.
#pragma once

#include <array>
#include <span>

#include "dispatch/backend.h"

namespace foscar::cuda {

// What every instance gets; passed by value.
struct AppendKernelArgs {
  AppendArgs call;
  std::int64_t num_slots;  // of the pool
  int page_log2;           // log2(page_size)
  int k_group_log2;        // log2(group_size), channels
  int v_group_log2;
};

struct AppendKernel {
  int head_dim;
  bool one_group;  // serves rows of one group per side only
  bool wide;       // needs rows whose starts are multiples of 16 bytes
  int tokens_per_block;
  const void* function;  // __global__ void(AppendKernelArgs)
};

std::span<const AppendKernel> append_kernels_f32();
std::span<const AppendKernel> append_kernels_f16();
std::span<const AppendKernel> append_kernels_bf16();

inline constexpr int kAppendThreads = 256;

}  // namespace foscar::cuda
