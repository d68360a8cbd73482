// The generic algorithms over the primitives of isa/avx512.h; compiled with the flags of that
// instruction set.
#include "backends/cpu/features.h"
#include "backends/cpu/generic/append.h"
#include "backends/cpu/generic/decode.h"
#include "backends/cpu/generic/dense.h"
#include "backends/cpu/generic/dequantize.h"
#include "backends/cpu/generic/rotate.h"
#include "backends/cpu/isa/avx512.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

const Kernels& avx512_kernels() {
  static const Kernels kKernels{
      decode_piece<Avx512>,
      features().avx512_bf16 ? avx512_bf16_dense_piece() : dense_piece<Avx512>,
      append_token<Avx512>, dequantize_tokens<Avx512>, rotate_block<Avx512>};
  return kKernels;
}

}  // namespace foscar::cpu
