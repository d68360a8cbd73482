// Host side of the decode kernel: which instance, which launch shape, how much workspace.
#pragma once

#include <cstdint>

#include "backends/cuda/decode/entry.h"
#include "dispatch/backend.h"

namespace foscar::cuda {

// The launch shape.
struct DecodeLaunch {
  int num_blocks;  // one per SM
  int num_warps;   // per block
  int team_warps;  // warps that share one stream of pages, each with its own query rows
  int row_blocks;  // times that each KV head is read
  int num_stages;  // ring slots per team
  StageLayout stage;
  int shared_bytes;
};

// The kernel and the launch shape for a problem. Throw Error{kUnsupported} where there is none.
const KernelEntry& find_kernel(const DecodeShape& shape, const PageLayout& layout);
DecodeLaunch choose_launch(const KernelEntry& kernel, const DecodeShape& shape,
                           const PageLayout& layout, int device_index);

// Whether the kernels were compiled for the architecture of the current device.
bool has_code_for_current_device();

Support supports_decode(const DecodeDesc& desc);
// Bytes, enough for every format; a workspace may serve calls of any shapes that need no more.
std::int64_t decode_workspace_bytes(const DecodeShape& shape, int device_index);
// One launch on args.stream. Throws before it launches anything.
void decode(const DecodeArgs& args);

}  // namespace foscar::cuda
