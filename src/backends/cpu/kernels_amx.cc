// AMX decode; the rest is the AVX-512 table. Tile instructions are assembly, so the flags are those
// of kernels_avx512.cc.
#include "backends/cpu/generic/decode.h"
#include "backends/cpu/isa/amx.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

const Kernels& amx_kernels() {
  static const Kernels kKernels = [] {
    Kernels kernels = avx512_kernels();
    kernels.decode_piece = decode_piece<Amx>;
    return kernels;
  }();
  return kKernels;
}

}  // namespace foscar::cpu
