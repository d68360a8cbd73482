// FoldedMath: attention of up to 8 query rows, 32 tokens at a time, with operands that are the packed codes under
// masks, and scale and offset applied once per group. Per token t, channel c and row r, with group g of c:
//
//   logit  = sum_g [ k_scale_tg * (q . k_codes)_g + k_offset_tg * sum(q)_g ]                      accumulator fold
//   o_c    = sum_t [ (p_t * v_scale_tg) * v_code_tc ] + sum_t [ p_t * v_offset_tg ]               prob fold
//
// Both products run on the integer tensor cores, exact: u8 codes against 16-bit fixed point split into two byte columns.
//   K   a register of K codes & 0x03030303 << 4p' (or 0x0f0f0f0f << 4p) is an operand as it is, worth 16^p' its codes;
//       INT2's odd positions are one shift by 2 away. Weights 1 and 16 have an accumulator each.
//   V   after a transposing load, one byte permute brings four tokens together, then the same masks; here a position is a
//       row of the result, so its weight is undone when the accumulator is flushed
//   P   one multiply-add, (p * prob_factor) * v_scale + 2^23: the low 16 bits of the float are the integer
//
// p is relative to row_ref, the reference of the row's FP32 sums, which only guards their exponent range. prob_factor, a
// power of two per row and group, places p * v_scale in the 16 bits, and follows the data in both directions: it is
// replaced when the largest product of 32 tokens leaves [2^11, 2^16), tested with two warp votes. Replacing it flushes the
// integer accumulators into FP32. So at least 11 bits resolve the largest probability of every 32 tokens, however the
// logits or the scales of V drift, and neither overflow nor a lost tail is possible.
//
// A token whose codes of V are all 0 (a flat group) adds nothing, whatever its scale: it must have no say in prob_factor. The
// warp looks at codes only for scales that a flat group is likely to have: 1, which the quantizer gives it, and any above
// twice the largest that was seen with codes (scale_ceiling). The common case costs three comparisons of a lane's one scale.
//
// The offset part uses the exact p: with fixed point, folding the rounded p into it would lose the offset of tokens
// whose v_scale is small beside their neighbours'.
#pragma once

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/half.cuh"
#include "backends/cuda/decode/query.cuh"
#include "backends/cuda/decode/value_sums.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

// Adding 2^23 to a float below 2^23 rounds it to an integer and leaves that in the low bits of the sum. Bounds of p * v_scale
// * prob_factor under that constant: everything must round below 2^16, the largest of 32 must reach 2^11.
inline constexpr float kProbMagic = 8388608.0f;
inline constexpr float kProbCeiling = kProbMagic + 65535.0f;
inline constexpr float kProbFloor = kProbMagic + 2048.0f;
inline constexpr float kProbCeilingLog2 = 15.99f;
inline constexpr float kProbFloorLog2 = 11.0f;
inline constexpr float kProbTargetLog2 =
    14.0f;  // the largest lies in 2^14 .. 2^15 right after adopting
inline constexpr float kFactorLog2Limit = 126.0f;  // of prob_factor and its reciprocal
// Scales of V within 2^+-24 are ordinary: with kRowHeadroom they keep all FP32 sums far from the limits until the next
// adoption. A half step with others adopts at once.
inline constexpr float kOrdinaryScale = 16777216.0f;
// The quantizer's mark of a flat group (format/affine.h).
inline constexpr float kFlatScale = 1.0f;
// log2 by which logits may exceed row_ref before it moves.
inline constexpr float kRowHeadroom = 24.0f;
inline constexpr int kMaxUnflushedHalves = 1024;  // 1024 * 32 tokens * 255 * 240 < 2^31

template <typename C_>
struct FoldedMath {
  using C = C_;
  static constexpr int kLogits = kHalfTokens / 8;  // per lane and column tile: tokens 8i + g, row h

  QueryOperand<C> query;
  ValueSums<C> sums;
  float prob_factor[C::kColumnTiles][C::kGroups];
  float row_ref[C::kColumnTiles];
  float row_sum[C::kColumnTiles];  // this lane's tokens only, until the end of the row
  float offset_sum[C::kColumnTiles][C::kGroups];  // likewise
  float scale_ceiling;                            // V scales above it make settle() look at codes
  int unflushed_halves;

  // `slot` holds the warp's partial result, in shared memory, until the row is finished and beyond.
  __device__ void begin_row(const DecodeKernelArgs& args, const RawQuery<C>& raw, float* slot) {
    query.convert(args, raw);
    sums.clear(slot);
    unflushed_halves = 0;
    scale_ceiling = 0.0f;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      row_ref[n] = kUnsetReference;
      row_sum[n] = 0.0f;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        prob_factor[n][group] = 1.0f;  // with row_ref unset, p is infinite and does not fit
        offset_sum[n][group] = 0.0f;
      }
    }
  }

  // Logits of a half step. The lane's row of column tile n sees the tokens below visible[n].
  __device__ void compute_logits(const StageLayout& stage, const FragmentOffsets& at,
                                 const HalfView& view, const int (&visible)[C::kColumnTiles]) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
      tile_logits(view.codes + at.k + tile * stage.tile_offset, stage.chunk_stride, view, tile);
    // One lane looks at each token's scales.
    scales_ordinary = true;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      const float scale = ptx::load_shared(view.entry(group, lane_index()) + 8);
      scales_ordinary = scales_ordinary && scale <= scale_ceiling && scale >= 1 / kOrdinaryScale &&
                        scale != kFlatScale;
    }
    if (!view.masked) return;
    scales_ordinary = scales_ordinary || lane_index() >= view.num_tokens;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kLogits; ++i) {
        if (view.first_token + 8 * i + lane_g() < visible[n]) continue;
        logit[n][i] = -INFINITY;
        // A token that this row does not see may be another's NaN. (Two column tiles share these registers, but serve
        // single new tokens only, whose rows all see the same.)
        if constexpr (C::kGroups == 1) v_params[i] = {0.0f, 0.0f};
      }
    }
  }

  // Probabilities of the half step and their sums; whether the references fit them. If not, settle() must follow, and this
  // again: then the result counts, whatever is returned.
  __device__ bool weigh(const HalfView& view) {
    bool fits = scales_ordinary && unflushed_halves < kMaxUnflushedHalves;
    bool covered = true;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      float p[kLogits];
      half_sum[n] = 0.0f;
#pragma unroll
      for (int i = 0; i < kLogits; ++i) {
        p[i] = ptx::exp2_approx(fmaf(logit[n][i], row_unit(n), -row_ref[n]));
        half_sum[n] += p[i];
      }
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        float fixed[kLogits];
        float offsets = 0.0f;
#pragma unroll
        for (int i = 0; i < kLogits; ++i) {
          const float2 params = v(view, n, group, i);
          fixed[i] = fmaf(p[i] * prob_factor[n][group], params.x, kProbMagic);
          offsets = fmaf(p[i], params.y, offsets);
        }
        half_offset[n][group] = offsets;
        const float largest = fmaxf(fmaxf(fixed[0], fixed[1]), fmaxf(fixed[2], fixed[3]));
        fits = fits && largest <= kProbCeiling;
        covered = covered && every_row(__ballot_sync(~0u, largest >= kProbFloor));
        // Bytes: high of token g, high of g+8, low of g, low of g+8; the transposition then swaps tokens and columns.
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          probs.word[n][group][tile] = ptx::movmatrix_trans(__byte_perm(
              __float_as_uint(fixed[2 * tile]), __float_as_uint(fixed[2 * tile + 1]), 0x4051));
        }
      }
    }
    return __all_sync(~0u, fits) && covered;
  }

  // Adds the half step to the row.
  __device__ void add(const StageLayout& stage, const FragmentOffsets& at, const HalfView& view) {
    ++unflushed_halves;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      row_sum[n] += half_sum[n];
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group)
        offset_sum[n][group] += half_offset[n][group];
    }
    sums.add(view.codes + at.v, stage.chunk_stride, probs);
  }

  // Before the end of the row: makes the references fit the half step. At the end: completes the sums over the warp's lanes,
  // and the partial result is in the slot. One function for both keeps the code of the flush single.
  __device__ void settle(bool end_of_row, const StageLayout& stage, const FragmentOffsets& at,
                         const HalfView& view) {
    Extremes extremes;
    if (!end_of_row && !find_extremes(extremes, stage, at, view)) return;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      if (unflushed_halves > 0) flush(n);
      if (!end_of_row) {
        adopt_references(n, extremes);
        continue;
      }
      row_sum[n] = sum_over_tokens(row_sum[n]);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group)
        offset_sum[n][group] = sum_over_tokens(offset_sum[n][group]);
      sums.finish(n, offset_sum[n], row_ref[n], row_sum[n]);
    }
    unflushed_halves = 0;
    __syncwarp();
  }

 private:
  // What passes from compute_logits() to weigh() to add().
  float logit[C::kColumnTiles][kLogits];  // in units of row_unit()
  float2 v_params[C::kGroups == 1 ? kLogits
                                  : 1];  // v_scale, v_offset; with one group they stay in registers
  bool scales_ordinary;
  ProbOperands<C> probs;
  float half_sum[C::kColumnTiles];
  float half_offset[C::kColumnTiles][C::kGroups];

  // Of a half step, by row, in log2.
  struct Extremes {
    float logit[C::kColumnTiles];  // the largest
    float
        product[C::kColumnTiles]
               [C::kGroups];  // the largest p * v_scale of tokens with codes; p relative to row_ref
    bool ordinary;            // all scales of tokens with codes are
  };

  // v_scale and v_offset of token 8i + g.
  __device__ float2 v(const HalfView& view, int n, int group, int i) const {
    if constexpr (C::kGroups == 1) {
      return v_params[i];
    } else {
      // As in compute_logits(): an unseen token's parameters must not be read. Grouped kernels have one column tile.
      if (logit[n][i] == -INFINITY) return {0.0f, 0.0f};
      return ptx::load_shared2(view.entry(group, 8 * i + lane_g()) + 8);
    }
  }

  // Factor from logit[n] to log2(e) times the logit; with several groups it is applied group by group.
  __device__ float row_unit(int n) const { return C::kGroups == 1 ? query.unit[n][0] : 1.0f; }

  // Lanes with equal h hold one row's tokens.
  __device__ static float sum_over_tokens(float x) {
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
  }
  __device__ static float max_over_tokens(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
  }
  // Whether each of the four rows has a lane in `lanes`.
  __device__ static bool every_row(unsigned lanes) {
    return (lanes & 0x11111111u) != 0 && (lanes & 0x22222222u) != 0 && (lanes & 0x44444444u) != 0 &&
           (lanes & 0x88888888u) != 0;
  }

  // Accumulator of QK product i: 0 for weight 1, 1 for weight 16.
  static constexpr int k_position(int channel) { return channel / C::kKRowBytes; }
  static constexpr int product_accumulator(int product) {
    return C::kKBits == 2 ? k_position(32 * product) / 2 : k_position(32 * product);
  }
  // The codes of `channel`'s position in a register, at weight 1 or 16.
  __device__ static std::uint32_t k_operand(std::uint32_t codes, int channel) {
    const int position = k_position(channel);
    if (C::kKBits == 2 && position % 2 == 1) return codes >> 2 & position_mask(2, position - 1);
    return codes & position_mask(C::kKBits, position);
  }

  // Logits of a tile's 16 tokens: 4 rows per column tile, two tokens per lane.
  __device__ void tile_logits(std::uint32_t address, int chunk_stride, const HalfView& view,
                              int tile) {
    std::uint32_t codes[C::kKChunks][2];  // [chunk][tokens 0-7, tokens 8-15]
    if constexpr (C::kKChunks == 1) {
      ptx::ldmatrix_x2(codes[0], address);  // lanes 0-15 supply the addresses
    } else {
#pragma unroll
      for (int chunk = 0; chunk < C::kKChunks; chunk += 2) {
        std::uint32_t r[4];
        ptx::ldmatrix_x4(r, address + chunk * chunk_stride);
        codes[chunk][0] = r[0], codes[chunk][1] = r[1], codes[chunk + 1][0] = r[2],
        codes[chunk + 1][1] = r[3];
      }
    }
    constexpr int kAccumulators = C::kGroups == 1 ? 2 : C::kKProducts;
    std::int32_t s[C::kColumnTiles][kAccumulators][4];
#pragma unroll
    for (int i = 0; i < C::kKProducts; ++i) {
      // The product's two 16-channel halves: neighbouring chunks, or (one-chunk rows) neighbouring positions.
      const int chunk = 32 * i % C::kKRowBytes / kChunkBytes;
      const int chunk_b = C::kKChunks == 1 ? 0 : chunk + 1;
      const int target = C::kGroups == 1 ? product_accumulator(i) : i;
      const bool first = C::kGroups > 1 || i == 0 || product_accumulator(i - 1) != target;
      const ptx::OperandA a{k_operand(codes[chunk][0], 32 * i), k_operand(codes[chunk][1], 32 * i),
                            k_operand(codes[chunk_b][0], 32 * i + 16),
                            k_operand(codes[chunk_b][1], 32 * i + 16)};
#pragma unroll
      for (int n = 0; n < C::kColumnTiles; ++n) {
        if (first) {
          ptx::mma_u8s8_from_zero(s[n][target], a, query.b[n][i]);
        } else {
          ptx::mma_u8s8(s[n][target], a, query.b[n][i]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile * kTileTokens + 8 * half + lane_g();
      if constexpr (C::kGroups == 1) {
        const float4 params = ptx::load_shared4(view.entry(0, token));
        v_params[2 * tile + half] = {params.z, params.w};
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          const int high = s[n][0][2 * half] * 16 + s[n][1][2 * half];
          const int low = s[n][0][2 * half + 1] * 16 + s[n][1][2 * half + 1];
          logit[n][2 * tile + half] =
              fmaf(__int2float_rn(high * 256 + low), params.x, params.y * query.sum[n][0]);
        }
      } else {
        float total[C::kColumnTiles] = {};
#pragma unroll
        for (int group = 0; group < C::kGroups; ++group) {
          const float2 k = ptx::load_shared2(view.entry(group, token));
          const int weight = product_accumulator(group) == 0 ? 16 : 1;
#pragma unroll
          for (int n = 0; n < C::kColumnTiles; ++n) {
            const int sum = (s[n][group][2 * half] * 256 + s[n][group][2 * half + 1]) * weight;
            const float in_units = fmaf(__int2float_rn(sum), k.x, k.y * query.sum[n][group]);
            total[n] = fmaf(in_units, query.unit[n][group], total[n]);
          }
        }
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) logit[n][2 * tile + half] = total[n];
      }
    }
  }

  // Looks at the codes of V, a token per lane: bit t of coded[group] says that token t exists and has codes other than 0.
  // Raises scale_ceiling to twice the largest scale that has any; returns whether all of them are ordinary.
  __device__ bool find_coded(std::uint32_t (&coded)[C::kGroups], const StageLayout& stage,
                             const FragmentOffsets& at, const HalfView& view) {
    std::uint32_t bits[C::kGroups] = {};
#pragma unroll
    for (int chunk = 0; chunk < C::kVChunks; ++chunk) {
      const uint4 words = ptx::load_shared_words4(view.codes + at.v + chunk * stage.chunk_stride);
      const std::uint32_t any = words.x | words.y | words.z | words.w;
#pragma unroll
      for (int p = 0; p < C::kVPositions; ++p)
        bits[C::v_tile_group(chunk, p)] |= any & position_mask(C::kVBits, p);
    }
    bool ordinary = true;
    float largest = 0.0f;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      const bool counts = bits[group] != 0 && lane_index() < view.num_tokens;
      coded[group] = __ballot_sync(~0u, counts);
      const float scale = ptx::load_shared(view.entry(group, lane_index()) + 8);
      if (!counts) continue;
      ordinary = ordinary && scale <= kOrdinaryScale && scale >= 1 / kOrdinaryScale;
      largest = fmaxf(largest, scale);
    }
    const unsigned most = __reduce_max_sync(~0u, __float_as_uint(largest));  // not negative
    scale_ceiling = fminf(fmaxf(scale_ceiling, 2.0f * __uint_as_float(most)), kOrdinaryScale);
    return __all_sync(~0u, ordinary);
  }

  // Where `log2_product` lies in the fixed point of p, log2. Unset references place everything too high.
  __device__ float placed(int n, int group, float log2_product) const {
    const int factor_log2 = static_cast<int>(__float_as_uint(prob_factor[n][group]) >> 23) - 127;
    return log2_product - row_ref[n] + static_cast<float>(factor_log2);
  }
  __device__ bool well_placed(int n, int group, float log2_product) const {
    const float place = placed(n, group, log2_product);
    return place >= kProbFloorLog2 && place <= kProbCeilingLog2;
  }

  // Whether the references must change for the half step; `extremes` says what to.
  __device__ bool find_extremes(Extremes& extremes, const StageLayout& stage,
                                const FragmentOffsets& at, const HalfView& view) {
    std::uint32_t coded[C::kGroups];
    extremes.ordinary = find_coded(coded, stage, at, view);
    bool fits = extremes.ordinary && unflushed_halves < kMaxUnflushedHalves;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      float row_max = logit[n][0];
#pragma unroll
      for (int i = 1; i < kLogits; ++i) row_max = fmaxf(row_max, logit[n][i]);
      extremes.logit[n] = max_over_tokens(row_max) * row_unit(n);
      fits = fits && extremes.logit[n] <= row_ref[n] + kRowHeadroom;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        float largest = -INFINITY;
#pragma unroll
        for (int i = 0; i < kLogits; ++i) {
          if ((coded[group] >> (8 * i + lane_g()) & 1) == 0) continue;
          const float log2_scale = ptx::log2_approx(v(view, n, group, i).x);
          largest = fmaxf(largest, fmaf(logit[n][i], row_unit(n), log2_scale));
        }
        largest = max_over_tokens(largest);
        extremes.product[n][group] = largest;
        fits = fits && (largest == -INFINITY || well_placed(n, group, largest));
      }
    }
    return !__all_sync(~0u, fits);
  }

  __device__ void adopt_references(int n, const Extremes& extremes) {
    const float headroom = extremes.ordinary ? kRowHeadroom : 0.0f;
    if (extremes.logit[n] > row_ref[n] + headroom) {
      const float factor = ptx::exp2_approx(row_ref[n] - extremes.logit[n]);
      row_ref[n] = extremes.logit[n];
      row_sum[n] *= factor;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) offset_sum[n][group] *= factor;
      sums.rescale(n, factor);
    }
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      const float largest = extremes.product[n][group];
      if (largest == -INFINITY || well_placed(n, group, largest)) continue;
      const float factor_log2 = kProbTargetLog2 - floorf(largest - row_ref[n]);
      prob_factor[n][group] = power_of_two(
          static_cast<int>(fminf(fmaxf(factor_log2, -kFactorLog2Limit), kFactorLog2Limit)));
    }
  }

  // 2^exponent, of a normal number.
  __device__ static float power_of_two(int exponent) {
    return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
  }

  // Moves the integer accumulators of column tile n into the partial result.
  __device__ void flush(int n) {
    float worth[C::kGroups];  // 1 / prob_factor, exactly
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group)
      worth[group] = __uint_as_float((254u << 23) - __float_as_uint(prob_factor[n][group]));
    sums.flush(n, worth);
  }
};

}  // namespace foscar::cuda
