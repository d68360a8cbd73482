// What this processor and operating system offer. Read once from CPUID and XGETBV.
#pragma once

#include <string>

namespace foscar::cpu {

struct Features {
  bool avx2_set = false;  // AVX2, FMA, F16C, and the system saves the 256-bit registers
  bool avx512_set =
      false;  // AVX-512 F, BW, VL, DQ, VNNI, and the system saves the 512-bit registers
  bool avx512_bf16 = false;
  std::string missing_amx;     // for AMX TILE and INT8, on top of avx512_set
  std::string missing_avx2;    // what is missing, in words; empty if nothing
  std::string missing_avx512;  // the same
};

const Features& features();

}  // namespace foscar::cpu
