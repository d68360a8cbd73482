// dequantize of the CUDA backend.
#pragma once

#include "dispatch/backend.h"

namespace foscar::cuda {

// One launch on args.stream; rows at and beyond a request's kv_len are not written. Throws
// Error{kUnsupported} before the launch for a channel-wise format, Error{kInvalidArgument} for a
// grid beyond 2^31 - 1 blocks, Error{kRuntime} when the launch fails.
void dequantize(const DequantizeArgs& args);

}  // namespace foscar::cuda
