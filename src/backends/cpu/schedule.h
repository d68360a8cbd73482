// From a checked call to pieces on threads and back: cuts the call by WorkMap, runs the kernels of
// one instruction set, merges.
#pragma once

#include "backends/cpu/kernels.h"

namespace foscar::cpu {

void run_decode(const Kernels& kernels, const DecodeArgs& args);
void run_decode_dense(const Kernels& kernels, const DenseDecodeArgs& args);
void run_quantize_append(const Kernels& kernels, const AppendArgs& args);
void run_dequantize(const Kernels& kernels, const DequantizeArgs& args);
void run_merge_states(const MergeArgs& args);

}  // namespace foscar::cpu
