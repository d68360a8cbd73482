#include "backends/cpu/features.h"

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace foscar::cpu {
namespace {

#if defined(__x86_64__) || defined(__i386__)
// Extended control register 0: which register files the operating system saves.
std::uint64_t xcr0() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

bool bit(unsigned reg, int index) { return (reg >> index & 1u) != 0; }

void require(bool present, const char* name, std::string& missing) {
  if (!present) missing += (missing.empty() ? "" : ", ") + std::string(name);
}

// Asks the system for the tile registers, for all threads of the process.
bool request_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

Features detect() {
  unsigned eax = 0, ebx = 0, ecx1 = 0, edx = 0;
  Features f;
  if (__get_cpuid(1, &eax, &ebx, &ecx1, &edx) == 0) {
    f.missing_avx2 = f.missing_avx512 = f.missing_amx = "CPUID";
    return f;
  }
  unsigned ebx7 = 0, ecx7 = 0, edx7 = 0, eax7_1 = 0;
  __get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx7);
  unsigned ignored_b = 0, ignored_c = 0, ignored_d = 0;
  if (eax >= 1) __get_cpuid_count(7, 1, &eax7_1, &ignored_b, &ignored_c, &ignored_d);
  const std::uint64_t saved = bit(ecx1, 27) ? xcr0() : 0;  // OSXSAVE
  const bool saves_256 = (saved & 0x06) == 0x06;           // SSE and AVX state
  const bool saves_512 = (saved & 0xe6) == 0xe6;  // and opmask, upper halves, upper registers

  require(bit(ecx1, 28) && bit(ebx7, 5), "AVX2", f.missing_avx2);
  require(bit(ecx1, 12), "FMA", f.missing_avx2);
  require(bit(ecx1, 29), "F16C", f.missing_avx2);
  require(saves_256, "256-bit registers saved by the operating system", f.missing_avx2);
  f.avx2_set = f.missing_avx2.empty();

  require(bit(ebx7, 16), "AVX-512 F", f.missing_avx512);
  require(bit(ebx7, 30), "AVX-512 BW", f.missing_avx512);
  require(bit(ebx7, 31), "AVX-512 VL", f.missing_avx512);
  require(bit(ebx7, 17), "AVX-512 DQ", f.missing_avx512);
  require(bit(ecx7, 11), "AVX-512 VNNI", f.missing_avx512);
  require(saves_512, "512-bit registers saved by the operating system", f.missing_avx512);
  if (!f.avx2_set) require(false, "AVX2 with FMA and F16C", f.missing_avx512);
  f.avx512_set = f.missing_avx512.empty();
  f.avx512_bf16 = f.avx512_set && bit(eax7_1, 5);

  const bool saves_tiles = (saved & 0x60000) == 0x60000;
  require(f.avx512_set, "AVX-512 with VNNI", f.missing_amx);
  require(bit(edx7, 24), "AMX TILE", f.missing_amx);
  require(bit(edx7, 25), "AMX INT8", f.missing_amx);
  require(saves_tiles, "tile registers saved by the operating system", f.missing_amx);
  if (f.missing_amx.empty())
    require(request_tiles(), "the system's permission to use tile registers", f.missing_amx);
  return f;
}
#else
Features detect() {
  Features f;
  f.missing_avx2 = f.missing_avx512 = f.missing_amx = "an x86 processor";
  return f;
}
#endif

}  // namespace

const Features& features() {
  static const Features kFeatures = detect();
  return kFeatures;
}

}  // namespace foscar::cpu
