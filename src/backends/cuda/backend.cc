// The table of the CUDA backend, and whether this machine can run it.
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>
#include <utility>

#include "backends/cuda/append/append.h"
#include "backends/cuda/decode/decode.h"
#include "backends/cuda/dequantize/dequantize.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/merge/merge.h"
#include "backends/cuda/pages/pages.h"
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
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) return "the current CUDA device does not answer";
  // Whether this build holds machine code for the device: the runtime knows, when asked for any of the kernels.
  if (!cuda::has_code_for_current_device()) {
    return "this build has no code for the compute capability of the current CUDA device; "
           "FOSCAR_CUDA_ARCHS chooses the "
           "architectures that are compiled";
  }
  return {};
}

// What the decode kernel computes, less the options that it does not take yet.
Support supports(const DecodeDesc& desc) {
  const std::pair<bool, std::string_view> options[] = {{desc.window_left, "window_left"},
                                                       {desc.mask, "mask"},
                                                       {desc.logits_soft_cap, "logits_soft_cap"},
                                                       {desc.sinks, "sinks"}};
  for (const auto& [used, name] : options) {
    if (used) {
      return {false, std::string(name) +
                         ": the cuda backend does not take it; the cpu backends and reference do"};
    }
  }
  return cuda::supports_decode(desc);
}

void decode_dense(const DenseDecodeArgs&) {
  throw Error(ErrorKind::kUnsupported,
              "decode_dense: the cuda backend decodes quantized pages only; the cpu backends and "
              "reference offer it");
}

}  // namespace

std::span<const Backend> cuda_backends() {
  static constexpr Backend kBackends[] = {
      {.name = "cuda",
       .device = DeviceType::kCuda,
       .unavailable_reason = unavailable_reason,
       .description =
           "tensor cores over packed codes, one launch per call (compute capability 9.0 and above)",
       .supports = supports,
       .decode = cuda::decode,
       .decode_dense = decode_dense,
       .quantize_append = cuda::quantize_append,
       .dequantize = cuda::dequantize,
       .merge_states = cuda::merge_states,
       .decode_workspace_bytes = cuda::decode_workspace_bytes,
       .copy_pages = cuda::copy_pages},
  };
  return kBackends;
}

}  // namespace foscar
