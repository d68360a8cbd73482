// An owning, contiguous host tensor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "foscar/dtype.h"
#include "foscar/tensor.h"

namespace foscar::tool {

struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // elements
  std::vector<std::uint8_t> bytes;  // row-major

  // All bytes are `fill`.
  static HostTensor filled(DType dtype, std::vector<std::int64_t> shape, std::uint8_t fill = 0) {
    HostTensor t{dtype, std::move(shape), {}};
    t.bytes.assign(
        static_cast<std::size_t>(t.numel()) * static_cast<std::size_t>(dtype_bytes(dtype)), fill);
    return t;
  }

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape) n *= extent;
    return n;
  }
  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }

  // Element `index` of a floating-point tensor.
  float at(std::int64_t index) const { return load_as_float(bytes.data(), index, dtype); }
  void set(std::int64_t index, float value) { store_from_float(bytes.data(), index, dtype, value); }

  // All elements of a floating-point tensor as FP32, exact.
  std::vector<float> to_float() const {
    std::vector<float> values(static_cast<std::size_t>(numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<std::int64_t>(i));
    return values;
  }
  // The same rounded to another floating-point type.
  HostTensor to(DType target) const {
    if (target == dtype) return *this;
    HostTensor result = filled(target, shape);
    for (std::int64_t i = 0; i < numel(); ++i) result.set(i, at(i));
    return result;
  }
};

}  // namespace foscar::tool
