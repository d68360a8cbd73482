#include "device_arena.h"

#include <chrono>
#include <cstring>
#include <new>

#include "cuda_arena.h"

namespace foscar::tool {
namespace {

constexpr std::align_val_t kAlignment{256};

class HostArena final : public DeviceArena {
 public:
  Device device() const override { return {DeviceType::kCpu, 0}; }

  void* allocate_bytes(std::size_t bytes, std::uint8_t fill) override {
    blocks_.emplace_back(static_cast<std::uint8_t*>(::operator new(bytes, kAlignment)));
    std::memset(blocks_.back().get(), fill, bytes);
    return blocks_.back().get();
  }
  void copy_from_host(const Tensor& destination, const void* source, std::int64_t bytes) override {
    std::memcpy(destination.data, source, static_cast<std::size_t>(bytes));
  }
  void copy_to_host(void* destination, const Tensor& source, std::int64_t bytes) override {
    std::memcpy(destination, source.data, static_cast<std::size_t>(bytes));
  }
  double time_us(const std::function<void()>& call) override {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }

 private:
  struct Release {
    void operator()(std::uint8_t* block) const { ::operator delete(block, kAlignment); }
  };
  std::vector<std::unique_ptr<std::uint8_t, Release>> blocks_;
};

}  // namespace

Tensor DeviceArena::allocate(DType dtype, const std::vector<std::int64_t>& shape,
                             std::uint8_t fill) {
  Tensor tensor{.dtype = dtype, .device = device(), .ndim = static_cast<int>(shape.size())};
  std::int64_t elements = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = elements;
    elements *= shape[i];
  }
  tensor.data = allocate_bytes(static_cast<std::size_t>(elements * dtype_bytes(dtype)), fill);
  return tensor;
}

Tensor DeviceArena::upload(const HostTensor& tensor) {
  const Tensor copy = allocate(tensor.dtype, tensor.shape, 0);
  copy_from_host(copy, tensor.bytes.data(), static_cast<std::int64_t>(tensor.bytes.size()));
  return copy;
}

HostTensor DeviceArena::download(const Tensor& tensor) {
  HostTensor copy =
      HostTensor::filled(tensor.dtype, {tensor.shape.begin(), tensor.shape.begin() + tensor.ndim});
  copy_to_host(copy.bytes.data(), tensor, static_cast<std::int64_t>(copy.bytes.size()));
  return copy;
}

bool has_arena(DeviceType type) { return type == DeviceType::kCpu || has_cuda_arena(); }

std::unique_ptr<DeviceArena> make_arena(DeviceType type) {
  if (type == DeviceType::kCuda) return make_cuda_arena();
  return std::make_unique<HostArena>();
}

}  // namespace foscar::tool
