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
//   P   p * v_scale = exp2(logit2 + log2(v_scale) - prob_ref), below 2^16, rounded by adding 2^23: the low 16 bits of
//       the float are the integer
//
// prob_ref (per row and group, in log2 units) follows the data in both directions: it is replaced when the largest
// p * v_scale of 32 tokens leaves [2^11, 2^16), tested with two warp votes. Replacing it flushes the integer
// accumulators into FP32. So at least 11 bits resolve the largest probability of every 32 tokens, however the logits or the
// scales of V drift, and neither overflow nor a lost tail is possible. row_ref, the reference of the FP32 sums, only
// guards their exponent range.
//
// The offset part uses the exact p: with fixed point, folding the rounded p into it would lose the offset of tokens
// whose v_scale is small beside their neighbours'.
#pragma once

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/load.cuh"
#include "backends/cuda/decode/query.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

// This lane's addresses inside a stage, bytes. Tiles begin at multiples of 16 tokens, so a tile's offset and a token's
// offset inside its tile (or pair of tiles) just add up, whatever the page size.
struct FragmentOffsets {
  int k;  // row lane % 16 of a tile, chunk plane lane / 16
  int v;  // token `lane` of the 32 of a half step

  __device__ explicit FragmentOffsets(const StageLayout& stage) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    k = stage.token_offset(lane % 16) + (lane / 16) * stage.chunk_stride;
    v = stage.v_codes_offset + stage.token_offset(lane);
  }
};

// What is known of a half step's tokens.
struct HalfView {
  bool masked;      // some row does not see all 32 tokens
  bool ordinary;    // every V scale lies within 2^+-24
  int first_token;  // in the request
};

inline constexpr float kProbCeiling = 15.99f;  // log2 of the largest p * v_scale: rounds below 2^16
inline constexpr float kProbFloor = 11.0f;     // log2 of the least that the largest of 32 may be
inline constexpr float kProbTarget = 15.0f;    // log2 of that largest right after adopting
// log2 by which the largest logit may exceed row_ref when references are adopted. Until the next time, ordinary scales
// bound it by 24 + (15 - 11) + 1 + 2 * 24 more: far from FP32's limit.
inline constexpr float kRowHeadroom = 24.0f;
inline constexpr int kMaxUnflushedHalves = 1024;  // 1024 * 32 tokens * 255 * 240 < 2^31

template <typename C_>
struct FoldedMath {
  using C = C_;
  static constexpr int kLogits = kHalfTokens / 8;  // per lane and column tile: tokens 8i + g, row h

  QueryOperand<C> query;
  std::int32_t acc[C::kColumnTiles][C::kVTiles]
                  [4];  // columns 2h (high), 2h+1 (low) of channels 2g, 2g+1 of a tile
  float* partial;       // shared: [row][o | row_ref | row_sum], o in units of 2^row_ref
  float prob_ref[C::kColumnTiles][C::kGroups];
  float row_ref[C::kColumnTiles];
  float row_sum[C::kColumnTiles];  // this lane's tokens only, until the end of the row
  float offset_sum[C::kColumnTiles][C::kGroups];  // likewise
  int unflushed_halves;

  // `slot` holds the warp's partial result, in shared memory, until the row is finished and beyond.
  __device__ void begin_row(const DecodeKernelArgs& args, int request, int kv_head, int first_row,
                            float* slot) {
    query.load(args, request, kv_head, first_row);
    partial = slot;
    unflushed_halves = 0;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      row_ref[n] = kUnsetReference;
      row_sum[n] = 0.0f;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        prob_ref[n][group] = kUnsetReference;
        offset_sum[n][group] = 0.0f;
      }
#pragma unroll
      for (int t = 0; t < C::kVTiles; ++t) {
        *output_pair(n, t) = {0.0f, 0.0f};
        acc[n][t][0] = acc[n][t][1] = acc[n][t][2] = acc[n][t][3] = 0;
      }
    }
  }

  // Logits of a half step, and whether the references fit them. `table` is the warp's parameter table; the lane's row of
  // column tile n sees the tokens below visible[n]. finish_half() must follow, in between settle() if this is false.
  __device__ bool begin_half(const StageLayout& stage, std::uint32_t half,
                             const FragmentOffsets& at, const float4* table, const HalfView& view,
                             const int (&visible)[C::kColumnTiles]) {
    values.table = table;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
      tile_logits(half + at.k + tile * stage.tile_offset, stage.chunk_stride, tile);
    if (view.masked) {
#pragma unroll
      for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < kLogits; ++i) {
          if (view.first_token + 8 * i + lane_g() < visible[n]) continue;
          values.logit[n][i] = -INFINITY;
          // A token that this row does not see may be another's NaN. (Two column tiles share these registers, but serve
          // single new tokens only, whose rows all see the same.)
          if constexpr (C::kGroups == 1) values.v_params[i] = {0.0f, 0.0f};
        }
      }
    }
    return references_fit(view.ordinary);
  }

  // Flushes. Before the end of the row it then adopts references that fit the half step; at the end it completes the sums
  // over the warp's lanes, and `partial` is the result. One function for both keeps the code of the flush single.
  __device__ void settle(bool end_of_row) {
    unflushed_halves = 0;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      flush(n);
      if (!end_of_row) {
        adopt_references(n);
        continue;
      }
      row_sum[n] = sum_over_tokens(row_sum[n]);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group)
        offset_sum[n][group] = sum_over_tokens(offset_sum[n][group]);
#pragma unroll
      for (int t = 0; t < C::kVTiles; ++t) {
        const float offset = offset_sum[n][C::v_tile_group(t / C::kVPositions, t % C::kVPositions)];
        const float2 o = *output_pair(n, t);
        *output_pair(n, t) = {o.x + offset, o.y + offset};
      }
      if (lane_g() == 0)
        *reinterpret_cast<float2*>(row(n) + C::kHeadDim) = {row_ref[n], row_sum[n]};
    }
    __syncwarp();
  }

  // Probabilities and values of the half step.
  __device__ void finish_half(const StageLayout& stage, std::uint32_t half,
                              const FragmentOffsets& at) {
    add_offsets();
    add_values(half + at.v, stage.chunk_stride);
  }

 private:
  // What is known of the half step's tokens between the two products.
  struct Values {
    const float4* table;                             // the warp's parameter table
    float logit[C::kColumnTiles][kLogits];           // in units of row_unit()
    float2 v_params[C::kGroups == 1 ? kLogits : 1];  // with one group they stay in registers

    __device__ float2 v(int group, int i) const {  // log2(v_scale), v_offset
      if constexpr (C::kGroups == 1) {
        return v_params[i];
      } else {
        // As above: an unseen token's parameters must not be read. Grouped kernels have one column tile.
        if (logit[0][i] == -INFINITY) return {0.0f, 0.0f};
        return *reinterpret_cast<const float2*>(&table[group * kHalfTokens + 8 * i + lane_g()].z);
      }
    }
  };
  Values values;

  // Factor from values.logit to logit * log2(e); with several groups it is applied group by group.
  __device__ float row_unit(int n) const { return C::kGroups == 1 ? query.unit[n][0] : 1.0f; }

  __device__ static int lane_g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int lane_h() { return static_cast<int>(threadIdx.x) % 4; }

  // This lane's row of column tile n in the partial result, and its channels 2g, 2g+1 of output tile t there.
  __device__ float* row(int n) const {
    return partial + (n * kRowsPerColumnTile + lane_h()) * C::kPartialRowFloats;
  }
  __device__ float2* output_pair(int n, int t) const {
    const int channel =
        16 * (t / C::kVPositions) + C::kVRowBytes * (t % C::kVPositions) + 2 * lane_g();
    return reinterpret_cast<float2*>(row(n) + channel);
  }

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
  __device__ void tile_logits(std::uint32_t address, int chunk_stride, int tile) {
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
      const float4* entry = values.table + tile * kTileTokens + 8 * half + lane_g();
      if constexpr (C::kGroups == 1) {
        const float4 params = *entry;
        values.v_params[2 * tile + half] = {params.z, params.w};
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          const int high = s[n][0][2 * half] * 16 + s[n][1][2 * half];
          const int low = s[n][0][2 * half + 1] * 16 + s[n][1][2 * half + 1];
          values.logit[n][2 * tile + half] =
              fmaf(__int2float_rn(high * 256 + low), params.x, params.y * query.sum[n][0]);
        }
      } else {
        float logit[C::kColumnTiles] = {};
#pragma unroll
        for (int group = 0; group < C::kGroups; ++group) {
          const float2 k = *reinterpret_cast<const float2*>(entry + group * kHalfTokens);
          const int weight = product_accumulator(group) == 0 ? 16 : 1;
#pragma unroll
          for (int n = 0; n < C::kColumnTiles; ++n) {
            const int sum = (s[n][group][2 * half] * 256 + s[n][group][2 * half + 1]) * weight;
            const float in_units = fmaf(__int2float_rn(sum), k.x, k.y * query.sum[n][group]);
            logit[n] = fmaf(in_units, query.unit[n][group], logit[n]);
          }
        }
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) values.logit[n][2 * tile + half] = logit[n];
      }
    }
  }

  // log2(p * v_scale) of the lane's largest, up to the row's reference.
  __device__ float largest_scaled(int n, int group) const {
    float largest = fmaf(values.logit[n][0], row_unit(n), values.v(group, 0).x);
#pragma unroll
    for (int i = 1; i < kLogits; ++i) {
      largest = fmaxf(largest, fmaf(values.logit[n][i], row_unit(n), values.v(group, i).x));
    }
    return largest;
  }

  // Whether every row's reference suits its largest p * v_scale of the half step.
  __device__ bool references_fit(bool ordinary) {
    bool fits = ordinary && ++unflushed_halves < kMaxUnflushedHalves;
    unsigned covered =
        0xfu;  // rows of which some lane holds a value above the floor, for every group
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        const float above = largest_scaled(n, group) - prob_ref[n][group];
        fits = fits && !(above > kProbCeiling);
        covered &= rows_of(__ballot_sync(~0u, above >= kProbFloor));
      }
    }
    return __all_sync(~0u, fits) && covered == 0xfu;
  }

  // Bit h: some lane of row h is set in `lanes`.
  __device__ static unsigned rows_of(unsigned lanes) {
    lanes |= lanes >> 16;
    lanes |= lanes >> 8;
    return (lanes | lanes >> 4) & 0xfu;
  }

  __device__ void adopt_references(int n) {
    float row_max = values.logit[n][0];
#pragma unroll
    for (int i = 1; i < kLogits; ++i) row_max = fmaxf(row_max, values.logit[n][i]);
    row_max = max_over_tokens(row_max) * row_unit(n);
    if (row_max > row_ref[n] + kRowHeadroom) {
      const float factor = ptx::exp2_approx(row_ref[n] - row_max);
      row_ref[n] = row_max;
      row_sum[n] *= factor;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) offset_sum[n][group] *= factor;
#pragma unroll
      for (int t = 0; t < C::kVTiles; ++t) {
        const float2 o = *output_pair(n, t);
        *output_pair(n, t) = {o.x * factor, o.y * factor};
      }
    }
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      const float largest = max_over_tokens(largest_scaled(n, group));
      const float above = largest - prob_ref[n][group];
      if (largest > kUnsetReference && !(above >= kProbFloor && above <= kProbCeiling)) {
        prob_ref[n][group] = largest - kProbTarget;
      }
    }
  }

  // Moves the integer accumulators of column tile n into the partial result.
  __device__ void flush(int n) {
#pragma unroll
    for (int t = 0; t < C::kVTiles; ++t) {
      const int group = C::v_tile_group(t / C::kVPositions, t % C::kVPositions);
      const int position_worth = position_weight(C::kVBits, t % C::kVPositions);
      const float weight = ptx::exp2_approx(prob_ref[n][group] - row_ref[n]) *
                           (1.0f / static_cast<float>(position_worth));
      std::int32_t(&a)[4] = acc[n][t];
      float2 o = *output_pair(n, t);
      o.x = fmaf(fmaf(__int2float_rn(a[0]), 256.0f, __int2float_rn(a[1])), weight, o.x);
      o.y = fmaf(fmaf(__int2float_rn(a[2]), 256.0f, __int2float_rn(a[3])), weight, o.y);
      *output_pair(n, t) = o;
      a[0] = a[1] = a[2] = a[3] = 0;
    }
  }

  // The exact parts: sum of p, and of p times the offset of V.
  __device__ void add_offsets() {
#pragma unroll
    for (int i = 0; i < kLogits; ++i) {
#pragma unroll
      for (int n = 0; n < C::kColumnTiles; ++n) {
        const float p = ptx::exp2_approx(fmaf(values.logit[n][i], row_unit(n), -row_ref[n]));
        row_sum[n] += p;
#pragma unroll
        for (int group = 0; group < C::kGroups; ++group) {
          offset_sum[n][group] = fmaf(p, values.v(group, i).y, offset_sum[n][group]);
        }
      }
    }
  }

  // p * v_scale of tile `tile` as operand B: four tokens (2h, 2h+8, 2h+1, 2h+9) of column g, high or low bytes.
  __device__ std::uint32_t prob_operand(int group, int n, int tile) const {
    std::uint32_t fixed[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * tile + half;
      const float exponent =
          fmaf(values.logit[n][i], row_unit(n), values.v(group, i).x - prob_ref[n][group]);
      fixed[half] = __float_as_uint(ptx::exp2_approx(exponent) + 8388608.0f);
    }
    // Bytes: high of token g, high of g+8, low of g, low of g+8; the transposition then swaps tokens and columns.
    return ptx::movmatrix_trans(__byte_perm(fixed[0], fixed[1], 0x4051));
  }

  // Adds p * V to the accumulators.
  __device__ void add_values(std::uint32_t address, int chunk_stride) {
    std::uint32_t probs[C::kColumnTiles][C::kGroups][2];
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        probs[n][group][0] = prob_operand(group, n, 0);
        probs[n][group][1] = prob_operand(group, n, 1);
      }
    }
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
        const std::uint32_t mask = position_mask(C::kVBits, p);
        const int group = C::v_tile_group(chunk, p);
        const ptx::OperandA a{even_a & mask, odd_a & mask, even_b & mask, odd_b & mask};
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          ptx::mma_u8u8(acc[n][chunk * C::kVPositions + p], a, probs[n][group]);
        }
      }
    }
  }
};

}  // namespace foscar::cuda
