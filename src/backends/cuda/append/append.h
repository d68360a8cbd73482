// quantize_append of the CUDA backend.
#pragma once

#include "dispatch/backend.h"

namespace foscar::cuda {

// One launch on args.stream. Entries of the slot mapping that are negative or beyond the pool are
// skipped. Bytes equal those of the CPU backends. Throws Error{kUnsupported} before the launch for
// a channel-wise format, Error{kRuntime} when the launch fails.
void quantize_append(const AppendArgs& args);

}  // namespace foscar::cuda
