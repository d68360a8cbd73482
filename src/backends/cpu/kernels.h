// The table of functions that each instruction set fills: one translation unit per set, compiled
// with its flags.
#pragma once

#include <cstdint>

#include "backends/cpu/scratch.h"
#include "dispatch/backend.h"

namespace foscar::cpu {

using DensePiece = void (*)(const DenseDecodeArgs&, const WorkItem&, const WorkItem* next,
                            int kv_len, DecodeScratch&, const PartialState& out);

struct Kernels {
  // Attention of one piece over its tokens; writes all rows of `out`. `next` is the piece that this
  // thread probably takes afterwards, or null; it is only prefetched.
  void (*decode_piece)(const DecodeArgs&, const WorkItem&, const WorkItem* next, int kv_len,
                       DecodeScratch&, const PartialState& out);
  DensePiece dense_piece;
  // Quantizes K and V of one token, all heads, into its slot.
  void (*append_token)(const AppendArgs&, std::int64_t token);
  // Reads tokens begin .. end-1 of request b back, all heads.
  void (*dequantize_tokens)(const DequantizeArgs&, int b, int begin, int end);
  // generic/rotate.h
  float* (*rotate_block)(const RotateArgs&, const float* matrix, float* x, float* y);
};

const Kernels& scalar_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
const Kernels& amx_emulated_kernels();
DensePiece avx512_bf16_dense_piece();

}  // namespace foscar::cpu
