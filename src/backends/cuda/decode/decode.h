// Host side of the decode kernel: which instance, which launch shape, how much workspace.
#pragma once

#include <cstdint>

#include "backends/cuda/decode/entry.h"
#include "dispatch/backend.h"

namespace foscar::cuda {

// The launch shape. Chosen by choose_launch(); benchmarks may overrule it.
struct DecodeLaunch {
  int num_blocks;  // one per SM
  int num_warps;   // per block
  int team_warps;  // warps that share one stream of pages, each with its own query rows
  int row_blocks;  // times that each KV head is read
  int num_stages;  // ring slots per team
  StageLayout stage;
  int shared_bytes;
};

// Kernel and launch shape for the problem; null members of `tuning` (0) are chosen here.
struct DecodeTuning {
  int num_warps = 0;
  int num_stages = 0;
};
const KernelEntry& find_kernel(const DecodeShape& shape, const PageLayout& layout);
DecodeLaunch choose_launch(const KernelEntry& kernel, const DecodeShape& shape, const PageLayout& layout,
                           int device_index, const DecodeTuning& tuning = {});

Support supports_decode(const DecodeDesc& desc);
std::int64_t decode_workspace_bytes(const DecodeShape& shape, int device_index);
void decode(const DecodeArgs& args);
void decode_tuned(const DecodeArgs& args, const DecodeTuning& tuning);

}  // namespace foscar::cuda
