// AVX-512 with BF16 products, for dense decode only: twice as many products per instruction as
// FP32, exact before they are added.
#pragma once

#include "backends/cpu/isa/avx512.h"

namespace foscar::cpu {

struct Avx512Bf16 : Avx512 {
  static constexpr bool kBf16Dot = true;

  // acc += a0 b0 + a1 b1 per lane, over 32 BF16 elements. As assembly for the reason given at
  // Avx512::dot.
  static void dot_bf16(F& acc, const std::uint16_t* a, I b) {
    struct Elements {
      std::uint16_t bf16[32];
    };
    __asm__("vdpbf16ps %2, %1, %0"
            : "+v"(acc)
            : "v"(b), "m"(*reinterpret_cast<const Elements*>(a)));
  }
};

}  // namespace foscar::cpu
