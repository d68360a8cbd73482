#include "bench_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

namespace foscar::tool {
namespace {

constexpr std::size_t kBufferWords = std::size_t{1} << 25;  // 256 MiB of 8 bytes

class HostBenchDevice final : public BenchDevice {
 public:
  HostBenchDevice() : buffer_(kBufferWords, 1) {}

  DeviceDescription describe() override {
    DeviceDescription description{.name = "CPU", .driver = "none"};
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
      if (!line.starts_with("model name")) continue;
      description.name = line.substr(line.find(':') + 2);
      break;
    }
    return description;
  }
  std::unique_ptr<DeviceArena> new_arena() override { return make_arena(DeviceType::kCpu); }
  void flush_caches() override { read_buffer(); }
  double read_ceiling_gbps() override {
    return fastest(sizeof(std::uint64_t) * kBufferWords, [this] { read_buffer(); });
  }
  double copy_ceiling_gbps() override {
    std::vector<std::uint64_t> target(kBufferWords);
    return fastest(2 * sizeof(std::uint64_t) * kBufferWords, [&] {
      in_parallel([&](std::size_t begin, std::size_t end) {
        std::memcpy(target.data() + begin, buffer_.data() + begin,
                    (end - begin) * sizeof(target[0]));
      });
    });
  }

 private:
  template <typename Work>
  static void in_parallel(const Work& work) {
    const std::size_t num_threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back(work, kBufferWords * i / num_threads,
                           kBufferWords * (i + 1) / num_threads);
    }
  }
  void read_buffer() {
    in_parallel([this](std::size_t begin, std::size_t end) {
      const volatile std::uint64_t sum =
          std::accumulate(buffer_.begin() + static_cast<std::ptrdiff_t>(begin),
                          buffer_.begin() + static_cast<std::ptrdiff_t>(end), std::uint64_t{0});
      static_cast<void>(sum);
    });
  }
  template <typename Call>
  static double fastest(std::size_t bytes, const Call& call) {
    double best_us = 1e30;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      call();
      const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
      best_us = std::min(best_us, us.count());
    }
    return 1e-3 * static_cast<double>(bytes) / best_us;
  }

  std::vector<std::uint64_t> buffer_;
};

}  // namespace

std::unique_ptr<BenchDevice> make_bench_device(DeviceType type) {
  if (type == DeviceType::kCuda) return make_cuda_bench_device();
  return std::make_unique<HostBenchDevice>();
}

double time_cold_us(BenchDevice& device, DeviceArena& arena, int repeats,
                    const std::function<void()>& call) {
  constexpr double kBudgetUs = 5e5;
  constexpr std::size_t kFewest = 3;
  call();  // loads the code, wakes the threads
  std::vector<double> times;
  double total = 0;
  while (times.size() < static_cast<std::size_t>(std::max(repeats, 1)) &&
         (times.size() < kFewest || total < kBudgetUs)) {
    device.flush_caches();
    times.push_back(arena.time_us(call));
    total += times.back();
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace foscar::tool
