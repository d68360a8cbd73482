// See harness.h.
#include "harness.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace foscar::test {
namespace {

constexpr std::uint8_t kGuardByte = 0xA5;

class CpuPlace : public Place {
 public:
  Device device() const override { return {}; }
  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void release(void* data) override { std::free(data); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

Place& cpu_place() {
  static CpuPlace place;
  return place;
}

#if !FOSCAR_TESTS_WITH_CUDA
Place* cuda_place() { return nullptr; }
#endif

const std::vector<TestBackend>& test_backends() {
  static const std::vector<TestBackend> backends = [] {
    const char* prefix = std::getenv("FOSCAR_TEST_BACKEND");
    std::vector<TestBackend> selected;
    for (const BackendInfo& info : list_backends()) {
      const bool on_cpu = info.device == DeviceType::kCpu;
      const bool wanted = prefix == nullptr ? on_cpu : info.name.starts_with(prefix);
      Place* place = on_cpu ? &cpu_place() : cuda_place();
      if (wanted && info.available && place != nullptr) selected.push_back({info.name, place});
    }
    return selected;
  }();
  return backends;
}

Buffer::Buffer(Place& place, const void* host, std::size_t bytes, std::size_t shift)
    : place_(&place),
      base_(static_cast<std::uint8_t*>(place.allocate(bytes + 2 * kGuard + shift))),
      bytes_(bytes),
      shift_(shift) {
  std::vector<std::uint8_t> image(bytes + 2 * kGuard + shift, kGuardByte);
  if (bytes > 0) std::memcpy(image.data() + kGuard + shift, host, bytes);
  place_->upload(base_, image.data(), image.size());
}

Buffer::Buffer(Buffer&& other) noexcept
    : place_(other.place_),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      shift_(other.shift_) {}

Buffer::~Buffer() {
  if (base_ == nullptr) return;
  std::vector<std::uint8_t> image(bytes_ + 2 * kGuard + shift_);
  place_->download(image.data(), base_, image.size());
  bool intact = true;
  for (std::size_t i = 0; i < image.size(); ++i) {
    if (i >= kGuard + shift_ && i < kGuard + shift_ + bytes_) continue;
    intact = intact && image[i] == kGuardByte;
  }
  EXPECT_TRUE(intact) << "bytes next to a buffer of " << bytes_ << " bytes were written";
  place_->release(base_);
}

std::vector<std::uint8_t> Buffer::download() const {
  std::vector<std::uint8_t> bytes(bytes_);
  if (bytes_ > 0) place_->download(bytes.data(), data(), bytes_);
  return bytes;
}

}  // namespace foscar::test
