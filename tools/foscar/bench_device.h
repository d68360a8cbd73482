// BenchDevice: what a benchmark needs from a device besides memory: cold caches, a clock, the speed
// limits that results are compared with, and what the device is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device_arena.h"

namespace foscar::tool {

struct DeviceDescription {
  std::string name;
  std::string driver;
  double sm_clock_mhz = 0;      // measured under load; 0: unknown
  double memory_clock_mhz = 0;  // nominal; 0: unknown
};

class BenchDevice {
 public:
  virtual ~BenchDevice() = default;

  virtual DeviceDescription describe() = 0;
  // New memory for one cell of the grid.
  virtual std::unique_ptr<DeviceArena> new_arena() = 0;
  // Evicts what the caches hold by reading other memory; leaves no dirty lines behind.
  virtual void flush_caches() = 0;
  // Fastest reading of a large buffer, GB/s.
  virtual double read_ceiling_gbps() = 0;
  // Fastest copy inside the device's memory, bytes read and bytes written both counted, GB/s.
  virtual double copy_ceiling_gbps() = 0;
};

std::unique_ptr<BenchDevice> make_bench_device(DeviceType type);

// In a build without CUDA it throws Error{kUnsupported}.
std::unique_ptr<BenchDevice> make_cuda_bench_device();

// Median time of `call` on cold caches, microseconds, over at most `repeats` calls.
double time_cold_us(BenchDevice& device, DeviceArena& arena, int repeats,
                    const std::function<void()>& call);

}  // namespace foscar::tool
