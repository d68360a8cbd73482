// merge_states of the CUDA backend.
#pragma once

#include "dispatch/backend.h"

namespace foscar::cuda {

// One launch on args.stream. Throws Error{kInvalidArgument} before the launch for a grid beyond
// 2^31 - 1 blocks, Error{kRuntime} when the launch fails.
void merge_states(const MergeArgs& args);

}  // namespace foscar::cuda
