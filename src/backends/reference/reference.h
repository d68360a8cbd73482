// The reference backend: what every other backend is measured against. Double precision, one loop
// per index, no SIMD, no threads, no folding: values are dequantized first and attended to
// afterwards, because that is obviously what the format means. reference.cc holds its table; nobody
// else includes this.
#pragma once

#include "dispatch/backend.h"

namespace foscar::reference {

void quantize_append(const AppendArgs& args);
void dequantize(const DequantizeArgs& args);
void decode(const DecodeArgs& args);
void decode_dense(const DenseDecodeArgs& args);
void merge_states(const MergeArgs& args);
void rotate_rows(const RotateArgs& args);

}  // namespace foscar::reference
