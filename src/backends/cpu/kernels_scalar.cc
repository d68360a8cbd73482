// The generic algorithms over the primitives of isa/scalar.h; compiled with the flags of that
// instruction set.
#include "backends/cpu/generic/append.h"
#include "backends/cpu/generic/decode.h"
#include "backends/cpu/generic/dense.h"
#include "backends/cpu/generic/dequantize.h"
#include "backends/cpu/generic/rotate.h"
#include "backends/cpu/isa/scalar.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

const Kernels& scalar_kernels() {
  static constexpr Kernels kKernels{decode_piece<Scalar>, dense_piece<Scalar>, append_token<Scalar>,
                                    dequantize_tokens<Scalar>, rotate_block<Scalar>};
  return kKernels;
}

}  // namespace foscar::cpu
