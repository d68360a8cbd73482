// The AMX algorithm over emulated tiles, plain C++: what tests run where there is no such unit.
#include "backends/cpu/generic/decode.h"
#include "backends/cpu/isa/emulated_tiles.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

const Kernels& amx_emulated_kernels() {
  static const Kernels kKernels = [] {
    Kernels kernels = scalar_kernels();
    kernels.decode_piece = decode_piece<EmulatedTiles>;
    return kernels;
  }();
  return kKernels;
}

}  // namespace foscar::cpu
