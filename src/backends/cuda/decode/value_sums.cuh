// The sums over tokens of one row: integer accumulators of p * V in registers, FP32 in shared memory.
//
//   acc      [output tile][4]: columns 2h (high byte of p) and 2h+1 (low) of channels 2g, 2g+1; exact
//   partial  [row][o | row_ref | row_sum], o in units of 2^row_ref: the warp's partial result
//
// Output tile t = (chunk c, position p) of V covers channels 16c + kVRowBytes*p .. +15. A code of position p counts
// position_weight() times in acc; that is undone by the flush. With one parameter group, all positions of a byte meet the same
// probabilities: then acc of position p holds the sums of positions 0 .. p together (prefix_mask(): one mask less per byte),
// and the flush takes differences, exact in integers.
#pragma once

#include "backends/cuda/decode/half.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

// p * v_scale of 32 tokens as operands B, one word per tile: four tokens (2h, 2h+8, 2h+1, 2h+9) of column g, high or low
// bytes.
template <typename C>
struct ProbOperands {
  std::uint32_t word[C::kColumnTiles][C::kGroups][2];
};

template <typename C>
struct ValueSums {
  static constexpr bool kPrefix = C::kGroups == 1;
  std::int32_t acc[C::kColumnTiles][C::kVTiles][4];
  float* partial;

  // Begins a row whose partial result lies at `slot`.
  __device__ void clear(float* slot) {
    partial = slot;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int t = 0; t < C::kVTiles; ++t) {
        *pair(n, t) = {0.0f, 0.0f};
        acc[n][t][0] = acc[n][t][1] = acc[n][t][2] = acc[n][t][3] = 0;
      }
    }
  }

  // Adds p * V of a half step whose codes of V begin at `address` (of the lane's row of the matrix load).
  __device__ void add(std::uint32_t address, int chunk_stride, const ProbOperands<C>& probs) {
#pragma unroll
    for (int chunk = 0; chunk < C::kVChunks; ++chunk) {
      std::uint32_t r[4];  // 16-bit word g of tokens 2h, 2h+1 of: tokens 0-7, 8-15, 16-23, 24-31
      ptx::ldmatrix_x4_trans(r, address + chunk * chunk_stride);
      const std::uint32_t even_a =
          __byte_perm(r[0], r[1], 0x6240);  // byte 2g of tokens 2h, 2h+8, 2h+1, 2h+9
      const std::uint32_t odd_a = __byte_perm(r[0], r[1], 0x7351);   // byte 2g+1
      const std::uint32_t even_b = __byte_perm(r[2], r[3], 0x6240);  // the second tile's
      const std::uint32_t odd_b = __byte_perm(r[2], r[3], 0x7351);
#pragma unroll
      for (int p = 0; p < C::kVPositions; ++p) {
        const std::uint32_t mask =
            kPrefix ? prefix_mask(C::kVBits, p) : position_mask(C::kVBits, p);
        const int group = C::v_tile_group(chunk, p);
        const ptx::OperandA a{even_a & mask, odd_a & mask, even_b & mask, odd_b & mask};
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          ptx::mma_u8u8(acc[n][chunk * C::kVPositions + p], a, probs.word[n][group]);
        }
      }
    }
  }

  // o += acc * worth, acc = 0. worth[g]: what one unit of an integer of group g is worth in units of 2^row_ref.
  __device__ void flush(int n, const float (&worth)[C::kGroups]) {
#pragma unroll
    for (int t = C::kVTiles - 1; t >= 0;
         --t) {  // downwards: a tile is cleared after its successor used it
      const int position = t % C::kVPositions;
      const float weight = worth[C::v_tile_group(t / C::kVPositions, position)] *
                           (1.0f / static_cast<float>(position_weight(C::kVBits, position)));
      std::int32_t(&a)[4] = acc[n][t];
      if (kPrefix && position > 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] -= acc[n][t - 1][i];
      }
      float2 o = *pair(n, t);
      o.x = fmaf(fmaf(__int2float_rn(a[0]), 256.0f, __int2float_rn(a[1])), weight, o.x);
      o.y = fmaf(fmaf(__int2float_rn(a[2]), 256.0f, __int2float_rn(a[3])), weight, o.y);
      *pair(n, t) = o;
      a[0] = a[1] = a[2] = a[3] = 0;
    }
  }

  // o *= factor: row_ref has moved.
  __device__ void rescale(int n, float factor) {
#pragma unroll
    for (int t = 0; t < C::kVTiles; ++t) {
      const float2 o = *pair(n, t);
      *pair(n, t) = {o.x * factor, o.y * factor};
    }
  }

  // Completes the partial result of a row: the offsets of V, and the row's state.
  __device__ void finish(int n, const float (&offset)[C::kGroups], float row_ref, float row_sum) {
#pragma unroll
    for (int t = 0; t < C::kVTiles; ++t) {
      const float x = offset[C::v_tile_group(t / C::kVPositions, t % C::kVPositions)];
      const float2 o = *pair(n, t);
      *pair(n, t) = {o.x + x, o.y + x};
    }
    if (lane_g() == 0) *reinterpret_cast<float2*>(row(n) + C::kHeadDim) = {row_ref, row_sum};
  }

 private:
  // This lane's row of column tile n in the partial result, and its channels 2g, 2g+1 of output tile t there.
  __device__ float* row(int n) const {
    return partial + (n * kRowsPerColumnTile + lane_h()) * C::kPartialRowFloats;
  }
  __device__ float2* pair(int n, int t) const {
    const int channel =
        16 * (t / C::kVPositions) + C::kVRowBytes * (t % C::kVPositions) + 2 * lane_g();
    return reinterpret_cast<float2*>(row(n) + channel);
  }
};

}  // namespace foscar::cuda
