// What every launcher of this folder shares: the device of the call, launch errors as exceptions,
// and powers of two as the shifts that kernels use.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <string>

#include "foscar/error.h"

namespace foscar::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a refused launch must not surface in the caller's next call
  throw Error(ErrorKind::kRuntime, std::string(what) + ": " + cudaGetErrorString(status));
}

inline int log2_of(int power) { return std::countr_zero(static_cast<unsigned>(power)); }

// Makes `device_index` current for a scope; the caller's device is current again afterwards.
class DeviceScope {
 public:
  explicit DeviceScope(int device_index) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device_index) check(cudaSetDevice(device_index), "cudaSetDevice");
    current_ = device_index;
  }
  ~DeviceScope() {
    if (previous_ != current_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  int current_ = 0;
};

}  // namespace foscar::cuda
