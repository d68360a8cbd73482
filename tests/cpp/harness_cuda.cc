// The CUDA place: device 0 through the runtime API. Compiled only where the CUDA backend is.
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "harness.h"

namespace foscar::test {
namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class CudaPlace : public Place {
 public:
  Device device() const override { return {DeviceType::kCuda, 0}; }
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    require(cudaMalloc(&data, bytes), "cudaMalloc");
    return data;
  }
  void release(void* data) override { cudaFree(data); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "upload");
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
  }
};

}  // namespace

Place* cuda_place() {
  static CudaPlace place;
  static const bool present = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }();
  return present ? &place : nullptr;
}

}  // namespace foscar::test
