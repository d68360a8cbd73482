// Everything runs on the default stream of device 0; copies wait for it.
#include "cuda_arena.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "foscar/error.h"

namespace foscar::tool {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::kRuntime, std::string(what) + ": " + cudaGetErrorString(status));
}

struct DeviceFree {
  void operator()(void* block) const { cudaFree(block); }
};
struct EventDestroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDestroy>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

class CudaArena final : public DeviceArena {
 public:
  Device device() const override { return {DeviceType::kCuda, 0}; }

  void* allocate_bytes(std::size_t bytes, std::uint8_t fill) override {
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    blocks_.emplace_back(data);
    check(cudaMemset(data, fill, bytes), "cudaMemset");
    return data;
  }
  void copy_from_host(const Tensor& destination, const void* source, std::int64_t bytes) override {
    check(cudaMemcpy(destination.data, source, static_cast<std::size_t>(bytes),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy to the device");
  }
  void copy_to_host(void* destination, const Tensor& source, std::int64_t bytes) override {
    check(cudaMemcpy(destination, source.data, static_cast<std::size_t>(bytes),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy from the device");
  }
  double time_us(const std::function<void()>& call) override {
    check(cudaEventRecord(start_.get()), "cudaEventRecord");
    call();
    check(cudaEventRecord(stop_.get()), "cudaEventRecord");
    check(cudaEventSynchronize(stop_.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()), "cudaEventElapsedTime");
    return 1e3 * milliseconds;
  }

 private:
  std::vector<std::unique_ptr<void, DeviceFree>> blocks_;
  Event start_ = make_event();
  Event stop_ = make_event();
};

}  // namespace

bool has_cuda_arena() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::unique_ptr<DeviceArena> make_cuda_arena() {
  if (!has_cuda_arena())
    throw Error(ErrorKind::kUnsupported, "backend: this machine has no CUDA device");
  return std::make_unique<CudaArena>();
}

}  // namespace foscar::tool
