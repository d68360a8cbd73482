// In place of cuda_bench_device.cu in a build without CUDA.
#include "bench_device.h"
#include "foscar/error.h"

namespace foscar::tool {

std::unique_ptr<BenchDevice> make_cuda_bench_device() {
  throw Error(ErrorKind::kUnsupported, "backend: this build of the tool has no CUDA");
}

}  // namespace foscar::tool
