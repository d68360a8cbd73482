// DeviceArena: the memory in which a command keeps its tensors, and the clock that fits it. The
// commands know only this interface, so a new kind of device is one more implementation file and
// one line in make_arena().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "foscar/decode.h"
#include "foscar/tensor.h"
#include "host_tensor.h"

namespace foscar::tool {

class DeviceArena {
 public:
  virtual ~DeviceArena() = default;

  virtual Device device() const = 0;
  // `bytes` bytes, each `fill`, 256-byte aligned; they live as long as the arena.
  virtual void* allocate_bytes(std::size_t bytes, std::uint8_t fill) = 0;
  virtual void copy_from_host(const Tensor& destination, const void* source,
                              std::int64_t bytes) = 0;
  virtual void copy_to_host(void* destination, const Tensor& source, std::int64_t bytes) = 0;
  // Time of one call on the device, microseconds.
  virtual double time_us(const std::function<void()>& call) = 0;

  // A contiguous tensor, every byte `fill`.
  Tensor allocate(DType dtype, const std::vector<std::int64_t>& shape, std::uint8_t fill);
  Tensor upload(const HostTensor& tensor);
  // `tensor` must be contiguous.
  HostTensor download(const Tensor& tensor);
};

// Whether make_arena(type) can work in this build.
bool has_arena(DeviceType type);

// Throws Error{kUnsupported} for a device that this build of the tool cannot place tensors on.
std::unique_ptr<DeviceArena> make_arena(DeviceType type);

}  // namespace foscar::tool
