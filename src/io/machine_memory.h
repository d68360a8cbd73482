// How much memory this machine has: what cannot fit is refused up front, as bad input, instead of
// ending in a process killed half-way.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace foscar::io {

// Bytes of physical memory.
inline std::int64_t machine_memory_bytes() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

}  // namespace foscar::io
