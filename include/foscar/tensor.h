// A non-owning strided view, the only tensor type at the API boundary. Nothing of a framework or of CUDA
// is needed to fill one; DLPack tensors map onto it field by field.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "foscar/dtype.h"

namespace foscar {

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

struct Tensor {
  static constexpr int kMaxDims = 5;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int ndim = 0;
  std::array<std::int64_t, kMaxDims> shape{};    // elements
  std::array<std::int64_t, kMaxDims> strides{};  // elements, not bytes

  bool defined() const { return data != nullptr || ndim > 0; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[static_cast<std::size_t>(i)];
    return n;
  }

  // A row-major view of `data`, at most kMaxDims dimensions.
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           Device device = {}) {
    Tensor t{
        .data = data, .dtype = dtype, .device = device, .ndim = static_cast<int>(shape.size())};
    std::size_t i = 0;
    for (std::int64_t extent : shape) t.shape[i++] = extent;
    std::int64_t stride = 1;
    for (i = shape.size(); i-- > 0;) {
      t.strides[i] = stride;
      stride *= t.shape[i];
    }
    return t;
  }
};

}  // namespace foscar
