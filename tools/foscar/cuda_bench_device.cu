// Device 0 as a BenchDevice. Caches are flushed by reading a buffer several times their size:
// writing one would leave dirty lines whose write-back the next kernel pays for.
#include <cuda_runtime.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "bench_device.h"
#include "cuda_arena.h"
#include "foscar/error.h"

namespace foscar::tool {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{256} << 20;
constexpr std::size_t kCeilingBytes = std::size_t{8} << 30;
constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr int kLoadsInFlight = 8;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::kRuntime, std::string(what) + ": " + cudaGetErrorString(status));
}

// Reads `count` 16-byte pieces, eight in flight per thread. `sink` is written for one value of the
// sum that does not occur, so that the loads have a purpose.
__global__ void __launch_bounds__(1024, 1)
    read_all(const uint4* data, std::size_t count, unsigned* sink) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + (kLoadsInFlight - 1) * stride < count; i += kLoadsInFlight * stride) {
    uint4 pieces[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) pieces[j] = data[i + j * stride];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      sum |= pieces[j].x | pieces[j].y | pieces[j].z | pieces[j].w;
    }
  }
  for (; i < count; i += stride) {
    const uint4 piece = data[i];
    sum |= piece.x | piece.y | piece.z | piece.w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

// Clocks and nanoseconds of a busy loop.
__global__ void measure_clock(long long* result) {
  unsigned long long begin_ns, end_ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
  const long long begin = clock64();
  float x = static_cast<float>(threadIdx.x);
  for (int i = 0; i < 1 << 20; ++i) x = fmaf(x, 0.999f, 0.001f);
  const long long end = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    result[0] = end - begin;
    result[1] = static_cast<long long>(end_ns - begin_ns);
    result[2] = static_cast<long long>(x);
  }
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) {
    check(cudaMalloc(&data_, bytes), "cudaMalloc");
    check(cudaMemset(data_, 0, bytes), "cudaMemset");
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class CudaBenchDevice final : public BenchDevice {
 public:
  CudaBenchDevice() {
    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaGetDeviceProperties(&properties_, 0), "cudaGetDeviceProperties");
  }

  DeviceDescription describe() override {
    DeviceDescription description{.name = properties_.name, .driver = driver_version()};
    int memory_khz = 0;
    check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, 0),
          "cudaDeviceGetAttribute");
    description.memory_clock_mhz = memory_khz / 1e3;
    const DeviceBuffer result(3 * sizeof(long long));
    measure_clock<<<properties_.multiProcessorCount, 256>>>(result.as<long long>());
    check(cudaGetLastError(), "clock measurement");
    long long host[3];
    check(cudaMemcpy(host, result.as<long long>(), sizeof(host), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    description.sm_clock_mhz = 1e3 * static_cast<double>(host[0]) / static_cast<double>(host[1]);
    return description;
  }

  std::unique_ptr<DeviceArena> new_arena() override { return make_cuda_arena(); }

  void flush_caches() override { read(flush_.as<uint4>(), kFlushBytes, 8, 256); }

  double read_ceiling_gbps() override {
    const std::size_t bytes = fitting(kCeilingBytes);
    const DeviceBuffer buffer(bytes);
    double best = 0;
    for (const int threads : {256, 512, 1024}) {
      for (const int blocks_per_sm : {1, 2, 4, 8, 16, 64}) {
        const double us =
            fastest_us([&] { read(buffer.as<uint4>(), bytes, blocks_per_sm, threads); });
        best = std::max(best, 1e-3 * static_cast<double>(bytes) / us);
      }
    }
    return best;
  }

  double copy_ceiling_gbps() override {
    const DeviceBuffer source(kCopyBytes), target(kCopyBytes);
    const double us = fastest_us([&] {
      check(cudaMemcpyAsync(target.as<void>(), source.as<void>(), kCopyBytes,
                            cudaMemcpyDeviceToDevice),
            "cudaMemcpyAsync");
    });
    return 2e-3 * static_cast<double>(kCopyBytes) / us;
  }

 private:
  static std::string driver_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;) {
      // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."
      if (word.find('.') != std::string::npos &&
          word.find_first_not_of("0123456789.") == std::string::npos) {
        return word;
      }
    }
    int version = 0;
    check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  static std::size_t fitting(std::size_t wanted) {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    while (wanted > free / 2) wanted /= 2;
    return wanted;
  }
  void read(const uint4* data, std::size_t bytes, int blocks_per_sm, int threads) {
    read_all<<<blocks_per_sm * properties_.multiProcessorCount, threads>>>(
        data, bytes / sizeof(uint4), sink_.as<unsigned>());
    check(cudaGetLastError(), "read kernel");
  }
  template <typename Call>
  double fastest_us(const Call& call) {
    const std::unique_ptr<DeviceArena> clock = make_cuda_arena();
    double best = std::numeric_limits<double>::infinity();
    call();
    for (int i = 0; i < 5; ++i) best = std::min(best, clock->time_us(call));
    return best;
  }

  cudaDeviceProp properties_{};
  DeviceBuffer flush_{kFlushBytes};
  DeviceBuffer sink_{sizeof(unsigned)};
};

}  // namespace

std::unique_ptr<BenchDevice> make_cuda_bench_device() {
  if (!has_cuda_arena()) {
    throw Error(ErrorKind::kUnsupported, "backend: this machine has no CUDA device");
  }
  return std::make_unique<CudaBenchDevice>();
}

}  // namespace foscar::tool
