// One strided copy per page: its rows are the blocks of the KV heads. The copy engine does the work, so a page that is
// offloaded costs no multiprocessor.
#include "backends/cuda/pages/pages.h"

#include <cuda_runtime_api.h>

#include <string>

#include "foscar/error.h"

namespace foscar::cuda {
namespace {

// The caller's current device is put back at the end.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&previous_);
    cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

// A single head has no stride of its own.
std::size_t pitch(const PoolView& pool, const CopyPagesArgs& args) {
  return static_cast<std::size_t>(args.num_kv_heads > 1 ? pool.head_stride : args.page_head_bytes);
}

}  // namespace

void copy_pages(const CopyPagesArgs& args) {
  const DeviceScope scope(args.device_index);
  const cudaMemcpyKind kind =
      args.from_cuda ? (args.to_cuda ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                     : cudaMemcpyHostToDevice;
  for (const PageCopy& copy : args.copies) {
    const cudaError_t status = cudaMemcpy2DAsync(
        args.to.data + copy.to * args.to.page_stride, pitch(args.to, args),
        args.from.data + copy.from * args.from.page_stride, pitch(args.from, args),
        static_cast<std::size_t>(args.page_head_bytes), static_cast<std::size_t>(args.num_kv_heads),
        kind, static_cast<cudaStream_t>(args.stream));
    if (status == cudaSuccess) continue;
    cudaGetLastError();
    throw Error(ErrorKind::kRuntime, std::string("copy_pages: ") + cudaGetErrorString(status));
  }
}

}  // namespace foscar::cuda
