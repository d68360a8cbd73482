// From the octets of a lane to the encoders of their groups, for four rows at once: K and V of two
// tokens.
//
//     row r = 2 * token + (V ? 1 : 0), r = 0 .. 3;       lane i of a quad keeps row i
//
// Every group spans at least one quad (32 channels are four octets), so the first two exchanges,
// inside the quad, hand each row to the lane that keeps it: four reductions cost hardly more than
// one, and each lane fits one row instead of four. The results go back to the quad by shuffles.
#pragma once

#include "backends/cuda/append/encode.h"
#include "backends/cuda/append/extremes.cuh"
#include "backends/cuda/append/row_lanes.h"
#include "dispatch/backend.h"

namespace foscar::cuda {

inline constexpr int kQuad = 4;

// The extremes of row `lane % 4` over `num_lanes` neighbouring lanes, at most kMaxLanes.
template <int kMaxLanes, DType kDType>
__device__ inline Extremes<kDType> reduce_rows(const Extremes<kDType> (&rows)[kQuad], int lane,
                                               int num_lanes) {
  using E = Extremes<kDType>;
  // By value: a choice between references would put the arrays into memory.
  const auto choose = [](bool second, E a, E b) {
    return E{second ? b.low : a.low, second ? b.high : a.high};
  };
  const bool is_second_token = (lane & 2) != 0;
  const bool is_v = (lane & 1) != 0;
  E k = choose(is_second_token, rows[0], rows[2]);
  E v = choose(is_second_token, rows[1], rows[3]);
  k.include(choose(is_second_token, rows[2], rows[0]).shuffle_xor(2));
  v.include(choose(is_second_token, rows[3], rows[1]).shuffle_xor(2));
  E kept = choose(is_v, k, v);
  kept.include(choose(is_v, v, k).shuffle_xor(1));
#pragma unroll
  for (int delta = kQuad; delta < kMaxLanes; delta *= 2) {
    const E other = kept.shuffle_xor(delta);
    if (delta < num_lanes) kept.include(other);
  }
  return kept;
}

// Fits the row that this lane keeps and returns the encoders of all four.
template <DType kDType>
__device__ inline void fit_rows(const Extremes<kDType>& kept, int bits, DType param_dtype,
                                GroupEncoder (&encoders)[kQuad]) {
  const float min = kept.min();
  const float max = kept.max();
  const bool finite = min > -INFINITY && max < INFINITY;
  const GroupEncoder own = GroupEncoder::of(fit_affine(min, max, finite, bits, param_dtype));
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    encoders[row] = {{__shfl_sync(~0u, own.params.scale, row, kQuad),
                      __shfl_sync(~0u, own.params.offset, row, kQuad)},
                     __shfl_sync(~0u, own.reciprocal, row, kQuad)};
  }
}

}  // namespace foscar::cuda
