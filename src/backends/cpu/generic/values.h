// Values: the PV product of a block for up to four query rows, by the input fold
//
//     w_t = p_t * v_scale_t ~= step * (high_t * 256 + low_t)          15-bit fixed point, step per
//     (row, group, block) o_c        += step * sum_t (high_t * 256 + low_t) * code_tc     exact
//     integers offset_sum += sum_t (p_t * v_offset_t - d_t * cancel_t)         d_t = rounded w_t -
//     w_t cancel_t    = -v_offset_t / v_scale_t, limited to 0 .. 2^bits - 1
//
// The last term makes the offset part follow the rounding of the code part, with which it largely
// cancels: within the limits it is the offset times the rounded p. The limits keep an offset that
// is large against its scale (a nearly flat group) from multiplying a rounding error. The
// denominator stays exact (softmax.h).
//
// Where scales of a block spread over more than a factor of 16, tokens are taken in several passes
// of one factor of 16 each, largest first: a token with a huge scale whose codes are 0 adds exactly
// 0 and costs the others no bit.
//
// Lanes are channels: four tokens of a channel are four bytes of a lane. Accumulator n of a cell
// (16 channels) holds channels cell * 16 + channel_of_lane(n, lane): the order of RowState::o.
#pragma once

#include "backends/cpu/generic/tiles.h"

namespace foscar::cpu {

inline constexpr float kWeightLevels = 32512.0f;  // 127 * 256: keeps the high byte below 128
inline constexpr float kScaleSpread = 0x1p-4f;

// Range of one group's V scales in a block. `scale`: [num_tokens], 0 in empty slots.
template <typename Isa>
ScaleRange survey_scales(const float* scale, int num_tokens) {
  using F = typename Isa::F;
  F largest = Isa::set(0.0f);
  F poison = Isa::set(
      0.0f);  // NaN if a scale is not finite: no valid cache holds one, but it must not vanish
  for (int t = 0; t < num_tokens; t += Isa::kLanes) {
    const F s = Isa::load(scale + t);
    largest = Isa::max(s, largest);
    poison = Isa::fma(s, Isa::set(0.0f), poison);
  }
  const float high = Isa::max_lane(largest);
  F below = Isa::set(0.0f);
  for (int t = 0; t < num_tokens; t += Isa::kLanes) {
    const F s = Isa::load(scale + t);
    below = Isa::max(Isa::keep_between(s, 0.0f, high * kScaleSpread, s), below);
  }
  return {high + Isa::sum(poison), Isa::max_lane(below) == 0.0f};
}

// weights [num_tokens], in lane order, as bytes in scratch.p_bytes[r]. `largest` is the largest of
// them. Returns the step, 0 if all are 0.
template <typename Isa>
float quantize_weights(int num_tokens, int g, int r, float largest, const float* weights,
                       DecodeScratch& scratch, RowState& row) {
  using F = typename Isa::F;
  if (!(largest > 0.0f)) {
    std::memset(scratch.p_bytes[r], 0, sizeof scratch.p_bytes[r]);
    return 0.0f;
  }
  // 15 bits for the largest weight. The bound on 1 / step keeps both normal numbers.
  float inverse = kWeightLevels / largest;
  if (!(inverse < 0x1p120f)) inverse = 0x1p120f;
  const float step = 1.0f / inverse;
  F rounding = Isa::set(0.0f);
  for (int t = 0; t < num_tokens; t += Isa::kLanes) {
    const F w = Isa::mul(Isa::load(weights + t), Isa::set(inverse));
    const typename Isa::I rounded = Isa::round(w);
    rounding =
        Isa::fma(Isa::sub(Isa::to_float(rounded), w), Isa::load(scratch.v_cancel[g] + t), rounding);
    Isa::split_bytes(rounded, scratch.p_bytes[r][0] + t, scratch.p_bytes[r][1] + t);
  }
  row.offset_sum[g] -= step * Isa::sum(rounding);
  return step;
}

// Codes of one vector of channels, four tokens of each: read from v_quads, or interleaved here.
template <typename Isa>
[[gnu::always_inline]] inline typename Isa::I load_quad(const TokenBlock& block,
                                                        const DecodeScratch& scratch, int chunk,
                                                        int part, int tile, int quad) {
  if constexpr (Isa::kStoreQuads) {
    return Isa::load_bytes(scratch.v_quads[chunk] + (tile * 4 + quad) * 64 +
                           part * Isa::kLanes * 4);
  } else {
    typename Isa::I y[16 / Isa::kLanes];
    Isa::interleave4(block.tiles[tile].v + chunk * block.chunk_stride + quad * 64, y);
    return y[part];
  }
}

// o += step * (codes . bytes) for the channels of one group, kValueVectors vectors at a time.
template <typename Isa, int kBits, int kRows>
void accumulate_values(const SideLayout& v, const TokenBlock& block, int g,
                       const float (&step)[kRows], DecodeScratch& scratch, RowState* rows) {
  using I = typename Isa::I;
  constexpr int kVectors = Isa::kValueVectors;
  constexpr int kParts = 16 / Isa::kLanes;               // vectors per cell
  constexpr int kFlushTiles = Isa::max_dots(kBits) / 4;  // until the accumulators must be emptied
  const int end = (g + 1) * v.group_size / Isa::kLanes;
  if constexpr (Isa::kTiles) {
    load_weight_tiles<Isa>(block, scratch);
    for (int cell = g * v.group_size / 16; cell < end; ++cell) {
      I total[kRows];
      value_tiles<Isa, kBits, kRows>(block, cell % v.num_chunks, cell / v.num_chunks * kBits,
                                     scratch, total);
      for (int r = 0; r < kRows; ++r) {
        float* o = rows[r].o + cell * 16;
        Isa::store(o, Isa::fma(Isa::to_float(total[r]), Isa::set(step[r]), Isa::load(o)));
      }
    }
    return;
  }
  for (int vector = g * v.group_size / Isa::kLanes; vector < end; vector += kVectors) {
    int chunk[kVectors];
    typename Isa::Shift shift[kVectors];
    for (int n = 0; n < kVectors; ++n) {
      const int cell = (vector + n) / kParts;
      chunk[n] = cell % v.num_chunks;
      shift[n] = Isa::shift_by(cell / v.num_chunks * kBits);
    }
    I total[kVectors][kRows];
    for (int n = 0; n < kVectors; ++n) {
      for (int r = 0; r < kRows; ++r) total[n][r] = Isa::zero();
    }
    for (int tile = 0; tile < block.num_tiles;) {
      const int stop = block.num_tiles - tile > kFlushTiles ? tile + kFlushTiles : block.num_tiles;
      typename Isa::Acc high[kVectors][kRows], low[kVectors][kRows];
      for (int n = 0; n < kVectors; ++n) {
        for (int r = 0; r < kRows; ++r) high[n][r] = low[n][r] = Isa::zero();
      }
      for (; tile < stop; ++tile) {
        for (int q = 0; q < kTileTokens / 4; ++q) {
          I code_bytes[kVectors];
          for (int n = 0; n < kVectors; ++n) {
            const I quad = load_quad<Isa>(block, scratch, chunk[n], (vector + n) % kParts, tile, q);
            code_bytes[n] = Isa::codes(quad, shift[n], max_code(kBits));
          }
          const int token = tile * kTileTokens + q * 4;
          for (int r = 0; r < kRows; ++r) {
            for (int n = 0; n < kVectors; ++n) {
              Isa::dot(high[n][r], code_bytes[n], scratch.p_bytes[r][0] + token);
              Isa::dot(low[n][r], code_bytes[n], scratch.p_bytes[r][1] + token);
            }
          }
        }
      }
      for (int n = 0; n < kVectors; ++n) {
        for (int r = 0; r < kRows; ++r)
          total[n][r] = Isa::collect(total[n][r], high[n][r], low[n][r]);
      }
    }
    for (int n = 0; n < kVectors; ++n) {
      for (int r = 0; r < kRows; ++r) {
        float* o = rows[r].o + (vector + n) * Isa::kLanes;
        Isa::store(o, Isa::fma(Isa::to_float(total[n][r]), Isa::set(step[r]), Isa::load(o)));
      }
    }
  }
}

// The weights of row r for the tokens of group g whose scale lies in (low, high], into
// scratch.weight. Returns the largest.
template <typename Isa>
float weigh_tokens(int num_tokens, int g, int r, const ScaleRange& range, float low, float high,
                   DecodeScratch& scratch) {
  using F = typename Isa::F;
  F largest = Isa::set(0.0f);
  for (int t = 0; t < num_tokens; t += Isa::kLanes) {
    const F scale = Isa::load(scratch.v_scale[g] + t);
    const F weight = Isa::mul(Isa::load(scratch.p[r] + t),
                              range.one_pass ? scale : Isa::keep_between(scale, low, high, scale));
    largest = Isa::max(weight, largest);
    Isa::store(scratch.weight + t, weight);
  }
  return Isa::max_lane(largest);
}

// The general form: any number of groups, any spread of scales. scratch.p holds probabilities; where a row hides tokens, scratch.keep
// says which it sees.
template <typename Isa, int kBits, int kRows>
void add_values(const PageLayout& layout, const TokenBlock& block, const bool (&hides)[kRows],
                DecodeScratch& scratch, RowState* rows) {
  using F = typename Isa::F;
  const int num_tokens = block.num_tiles * kTileTokens;
  for (int g = 0; g < layout.v.num_groups; ++g) {
    const float* scale = scratch.v_scale[g];
    const ScaleRange& range = scratch.v_range[g];
    for (int r = 0; r < kRows; ++r) {
      const int visible = rows[r].num_visible - block.begin;
      F offset = Isa::set(0.0f);
      for (int t = 0; t < num_tokens; t += Isa::kLanes) {
        F part = Isa::mul(Isa::load(scratch.p[r] + t), Isa::load(scratch.v_offset[g] + t));
        // A token that this row does not see has p = 0, but its offset may be NaN.
        if (visible < t + Isa::kLanes) part = Isa::select_tokens(visible - t, part, Isa::set(0.0f));
        if (hides[r]) part = Isa::keep_between(Isa::load(scratch.keep[r] + t), 0.0f, 1.0f, part);
        offset = Isa::add(offset, part);
      }
      rows[r].offset_sum[g] += Isa::sum(offset) + 0.0f * range.largest;
    }
    float high = range.largest;
    while (high > 0.0f) {
      const float low = range.one_pass ? 0.0f : high * kScaleSpread;
      float step[kRows];
      bool any = false;
      for (int r = 0; r < kRows; ++r) {
        const float largest = weigh_tokens<Isa>(num_tokens, g, r, range, low, high, scratch);
        step[r] =
            quantize_weights<Isa>(num_tokens, g, r, largest, scratch.weight, scratch, rows[r]);
        any = any || step[r] > 0.0f;
      }
      if (any) accumulate_values<Isa, kBits, kRows>(layout.v, block, g, step, scratch, rows);
      if (low == 0.0f) break;
      F next = Isa::set(0.0f);
      for (int t = 0; t < num_tokens; t += Isa::kLanes) {
        const F s = Isa::load(scale + t);
        next = Isa::max(Isa::keep_between(s, 0.0f, low, s), next);
      }
      high = Isa::max_lane(next);
    }
  }
}

// The usual case: one group, scales alike. scratch.p holds p * scale already, RowState its largest.
template <typename Isa, int kBits, int kRows>
void add_folded_values(const PageLayout& layout, const TokenBlock& block, DecodeScratch& scratch,
                       RowState* rows) {
  float step[kRows];
  for (int r = 0; r < kRows; ++r) {
    step[r] = quantize_weights<Isa>(block.num_tiles * kTileTokens, 0, r, rows[r].largest_weight,
                                    scratch.p[r], scratch, rows[r]);
  }
  accumulate_values<Isa, kBits, kRows>(layout.v, block, 0, step, scratch, rows);
}

}  // namespace foscar::cpu
