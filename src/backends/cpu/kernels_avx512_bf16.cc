// Dense decode with BF16 products; compiled with AVX512_BF16 on top of the flags of
// kernels_avx512.cc.
#include "backends/cpu/generic/dense.h"
#include "backends/cpu/isa/avx512_bf16.h"
#include "backends/cpu/kernels.h"

namespace foscar::cpu {

DensePiece avx512_bf16_dense_piece() { return dense_piece<Avx512Bf16>; }

}  // namespace foscar::cpu
