// What lets one test body run on every backend: places (host memory, or a CUDA device) with
// allocate / upload / download, and the list of backends under test.
//
//   FOSCAR_TEST_BACKEND unset   every available backend that takes CPU tensors
//   FOSCAR_TEST_BACKEND=cuda    every available backend whose name starts with "cuda"; likewise any
//   other prefix
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "foscar/foscar.h"

namespace foscar::test {

class Place {
 public:
  virtual ~Place() = default;
  virtual Device device() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // at least 256-byte aligned
  virtual void release(void* data) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;  // waits for the device
};

Place& cpu_place();
// Null when CUDA is not compiled in or no device answers.
Place* cuda_place();

struct TestBackend {
  std::string name;
  Place* place;

  bool is_cuda() const { return place->device().type == DeviceType::kCuda; }
  bool is_reference() const { return name == "reference"; }
};
inline std::ostream& operator<<(std::ostream& out, const TestBackend& backend) {
  return out << backend.name;
}
const std::vector<TestBackend>& test_backends();

// Memory of a place with 256 guard bytes on both sides, checked when the buffer dies.
class Buffer {
 public:
  Buffer() = default;
  // `host` is what it starts with, `bytes` long; `shift` moves the start off its alignment.
  Buffer(Place& place, const void* host, std::size_t bytes, std::size_t shift = 0);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  void* data() const { return base_ + kGuard + shift_; }
  std::vector<std::uint8_t> download() const;

 private:
  static constexpr std::size_t kGuard = 256;
  Place* place_ = nullptr;
  std::uint8_t* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t shift_ = 0;
};

// Fixtures: each of their tests runs once per backend under test. `Cases` are named after a list of
// failures that users of such kernels have met; the numbers are stable.
class PerBackend : public testing::TestWithParam<TestBackend> {
 protected:
  const TestBackend& backend() const { return GetParam(); }
};
class Cases : public PerBackend {};
class Decode : public PerBackend {};
class Append : public PerBackend {};

}  // namespace foscar::test
