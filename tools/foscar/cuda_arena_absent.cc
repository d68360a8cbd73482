// In place of cuda_arena.cc in a build without CUDA.
#include "cuda_arena.h"
#include "foscar/error.h"

namespace foscar::tool {

bool has_cuda_arena() { return false; }

std::unique_ptr<DeviceArena> make_cuda_arena() {
  throw Error(ErrorKind::kUnsupported, "backend: this build of the tool has no CUDA");
}

}  // namespace foscar::tool
