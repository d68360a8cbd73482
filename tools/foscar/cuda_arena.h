// Tensors on a CUDA device, for make_arena(). In a build without CUDA there is none.
#pragma once

#include <memory>

#include "device_arena.h"

namespace foscar::tool {

// Whether this build can use CUDA and the machine has a device.
bool has_cuda_arena();

// Throws Error{kUnsupported} when has_cuda_arena() is false.
std::unique_ptr<DeviceArena> make_cuda_arena();

}  // namespace foscar::tool
