// The table of the CUDA backend, and whether this machine can run it.
#include <cuda_runtime_api.h>

#include <string>

#include "backends/cuda/append/append.h"
#include "backends/cuda/decode/decode.h"
#include "backends/cuda/dequantize/dequantize.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/merge/merge.h"
#include "dispatch/backend.h"
#include "foscar/error.h"

namespace foscar {
namespace {

// Asks the driver anew each time: a process may gain or lose its devices before its first call.
std::string unavailable_reason() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return std::string("no CUDA device: ") + cudaGetErrorString(status);
  }
  if (count == 0) return "no CUDA device";
  for (int i = 0; i < count; ++i) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) == cudaSuccess && major >= 9) return {};
  }
  return "no CUDA device of compute capability 9.0 or above";
}

void decode_dense(const DenseDecodeArgs&) {
  throw Error(ErrorKind::kUnsupported,
              "decode_dense: the cuda backend decodes quantized pages only; the cpu backends and reference offer it");
}

}  // namespace

std::span<const Backend> cuda_backends() {
  static constexpr Backend kBackends[] = {
      {.name = "cuda",
       .device = DeviceType::kCuda,
       .unavailable_reason = unavailable_reason,
       .description = "tensor cores over packed codes, one launch per call (compute capability 9.0 and above)",
       .supports = cuda::supports_decode,
       .decode = cuda::decode,
       .decode_dense = decode_dense,
       .quantize_append = cuda::quantize_append,
       .dequantize = cuda::dequantize,
       .merge_states = cuda::merge_states,
       .decode_workspace_bytes = cuda::decode_workspace_bytes},
  };
  return kBackends;
}

}  // namespace foscar
