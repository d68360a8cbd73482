// Rotation and clipping of rows before they are quantized, and of queries and outputs around a decode.
//
// With an orthogonal R, q . k = (q R) . (k R), so a cache may hold k R instead of k if every query is rotated alike;
// and with values v R the output is rotated back, o R^T. A rotation spreads the few large channels of a trained
// model's keys over all channels of a group, which is what makes 2 bits usable.
//
//     append:   k_rot = clip(rotate(k, R_K)), v_rot = clip(rotate(v, R_V)) -> quantize_append(k_rot, v_rot)
//     decode:   q_rot = rotate(q, R_K) -> decode -> o = rotate(o_rot, R_V, inverse)
//
// Keys and queries are rotated after RoPE, which does not commute with a rotation across channels. Errors as in
// decode.h.
#pragma once

#include "foscar/decode.h"
#include "foscar/tensor.h"

namespace foscar {

inline constexpr int kMaxRotationDim = 1024;  // head_dim
inline constexpr int kMaxHadamardOrder = 512;

// Which orthogonal matrix: a dense one, or a block Hadamard matrix, which needs no data.
struct Rotation {
  // FP32, or FP16/BF16 (whose entries are then off by up to 2^-11 or 2^-8 of themselves), any strides:
  // [head_dim, head_dim] for all heads, or [num_kv_heads, head_dim, head_dim]. A row x becomes x R.
  Tensor matrix{};
  // Without a matrix: head_dim / order blocks of the Sylvester matrix of this order divided by sqrt(order), which is
  // its own inverse. A power of two 1 .. kMaxHadamardOrder that divides head_dim; 1 is the identity (clipping alone);
  // 0 stands for hadamard_order(head_dim).
  int hadamard_order = 0;
};

// The largest block of a Hadamard rotation: the largest power of two that divides head_dim (64 -> 64, 80 -> 16, 96 ->
// 32, 128 -> 128, 192 -> 64, 256 -> 256). Throws Error{kInvalidArgument} naming head_dim where that is below 16, too
// little to spread anything.
int hadamard_order(int head_dim);

struct RotateParams {
  // BF16, FP16 or FP32 [num_tokens, num_heads, head_dim] or [batch_size, qo_len, num_heads, head_dim], innermost
  // contiguous, other strides free.
  Tensor x{};
  // Shape of x, BF16, FP16 or FP32. May be x itself, else it must not share memory with it.
  Tensor out{};
  Rotation rotation{};
  // num_heads is a multiple of it: head h is rotated by the matrix of KV head h / (num_heads / num_kv_heads).
  int num_kv_heads = 0;
  // The transposed rotation.
  bool inverse = false;
  // OSCAR's quantile rule, applied to each rotated row: t is the element at index int(clip_ratio * head_dim) of the
  // row's magnitudes in ascending order, and every element is limited to -t .. t. 0: no clipping. Below 1. A row that
  // holds a NaN or an infinity is not clipped, so that the quantizer sees it.
  double clip_ratio = 0.0;
};

// Accumulates in FP32 (reference: in double), rounds once to the type of out. Each backend is deterministic; they agree
// within head_dim * 2^-24 * |x|, not bit by bit.
void rotate_rows(const RotateParams& params, const ExecutionContext& context = {});

}  // namespace foscar
