// Memory for the benchmark: large buffers on huge pages if asked for, a sweep of all caches, the
// read ceiling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace foscar::bench {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::uint8_t* p) const;
};
using Buffer = std::unique_ptr<std::uint8_t[], Unmap>;

// Zeroed, page-aligned.
Buffer allocate(std::size_t bytes, bool huge_pages);

// Reads 256 MB, so that no KV data is left in any cache of this machine.
void sweep_caches();

// GB/s at which `threads` threads together read a buffer of 512 MB; best of a few runs.
double read_ceiling_gbps(int threads, bool huge_pages);

}  // namespace foscar::bench
