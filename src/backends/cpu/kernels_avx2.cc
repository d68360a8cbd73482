// The generic algorithms over the primitives of isa/avx2.h; compiled with the flags of that
// instruction set.
#include "backends/cpu/generic/append.h"
#include "backends/cpu/generic/decode.h"
#include "backends/cpu/generic/dense.h"
#include "backends/cpu/generic/dequantize.h"
#include "backends/cpu/generic/rotate.h"
#include "backends/cpu/isa/avx2.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

const Kernels& avx2_kernels() {
  static constexpr Kernels kKernels{decode_piece<Avx2>, dense_piece<Avx2>, append_token<Avx2>,
                                    dequantize_tokens<Avx2>, rotate_block<Avx2>};
  return kKernels;
}

}  // namespace foscar::cpu
