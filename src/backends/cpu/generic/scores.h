// Scores: logits of a block for up to four query rows, by the accumulator fold
//
//     logit[row][t] = sum_g ( k_scale[g][t] * q_scale[row][g] * D + k_offset[g][t] * q_sum[row][g] )
//     D = sum over the group's channels of code * (high * 256 + low), an exact integer
//
// Lanes are tokens: a register holds four consecutive channels of 16 (or 8) tokens as bytes, the
// query comes as four broadcast bytes, and no horizontal sum is needed. Codes are unpacked once for
// all rows.
#pragma once

#include "backends/cpu/generic/tiles.h"

namespace foscar::cpu {

template <typename Isa, int kRows>
struct Dots {
  typename Isa::Acc high[kRows];
  typename Isa::Acc low[kRows];

  [[gnu::always_inline]] void clear() {
    for (int r = 0; r < kRows; ++r) high[r] = low[r] = Isa::zero();
  }
  // The query's bytes for channels first .. first+3 of all rows times one vector of codes.
  [[gnu::always_inline]] void add(typename Isa::I code_bytes, const RowState* rows, int first) {
    for (int r = 0; r < kRows; ++r) {
      Isa::dot(high[r], code_bytes, rows[r].q_bytes[0] + first);
      Isa::dot(low[r], code_bytes, rows[r].q_bytes[1] + first);
    }
  }
  [[gnu::always_inline]] void collect(typename Isa::I (&total)[kRows]) const {
    for (int r = 0; r < kRows; ++r) total[r] = Isa::collect(total[r], high[r], low[r]);
  }
};

// Integer dots of one vector of tokens for one group of channels, cells (16 channels) cell .. cell
// + num_cells - 1.
template <typename Isa, int kBits, int kRows>
[[gnu::always_inline]] inline void score_group(const typename Isa::I (*x)[4], int num_chunks,
                                               int cell, int num_cells, const RowState* rows,
                                               typename Isa::I (&total)[kRows]) {
  constexpr int kCells = Isa::max_dots(kBits) / 4;  // until the accumulators must be emptied
  const int log2_chunks = std::countr_zero(static_cast<unsigned>(num_chunks));
  for (const int end = cell + num_cells; cell < end;) {
    const int stop = end - cell > kCells ? cell + kCells : end;
    Dots<Isa, kRows> dots;
    dots.clear();
    for (; cell < stop; ++cell) {
      const typename Isa::I* chunk = x[cell & (num_chunks - 1)];
      const auto shift = Isa::shift_by((cell >> log2_chunks) * kBits);
      for (int i = 0; i < 4; ++i)
        dots.add(Isa::codes(chunk[i], shift, max_code(kBits)), rows, cell * 16 + i * 4);
    }
    dots.collect(total);
  }
}

// The same for a row that is one group: chunk by chunk with all positions of its bytes, so that
// transposed codes stay in registers and shifts are constants.
template <typename Isa, int kBits, int kRows>
[[gnu::always_inline]] inline void score_row(const SideLayout& k, const std::uint8_t* codes,
                                             int chunk_stride, const RowState* rows,
                                             typename Isa::I (&total)[kRows]) {
  constexpr int kChunks = Isa::max_dots(kBits) / (4 * codes_per_byte(kBits));
  for (int chunk = 0; chunk < k.num_chunks;) {
    const int stop = k.num_chunks - chunk > kChunks ? chunk + kChunks : k.num_chunks;
    Dots<Isa, kRows> dots;
    dots.clear();
    for (; chunk < stop; ++chunk) {
      typename Isa::I x[4];
      Isa::transpose4(codes + chunk * chunk_stride, x);
      const auto position = [&]<int kPosition>() __attribute__((always_inline)) {
        const int first = chunk * kChunkBytes + kPosition * k.row_bytes;
        for (int i = 0; i < 4; ++i) {
          dots.add(Isa::template codes<kPosition * kBits>(x[i], max_code(kBits)), rows,
                   first + i * 4);
        }
      };
      position.template operator()<0>();
      position.template operator()<1>();
      if constexpr (kBits == 2) {
        position.template operator()<2>();
        position.template operator()<3>();
      }
    }
    dots.collect(total);
  }
}

// Groups of 32 channels are half a tile: they take the vector path.
template <typename Isa>
bool use_score_tiles(const SideLayout& k) {
  return Isa::kTiles && k.group_size % kTileK == 0;
}

// Logits of one vector of tokens. `codes`: chunk 0 of its first token.
template <typename Isa, int kBits, int kRows>
[[gnu::always_inline]] inline void score_vector(const SideLayout& k, const std::uint8_t* codes,
                                                int chunk_stride, int first, const RowState* rows,
                                                DecodeScratch& scratch) {
  using F = typename Isa::F;
  using I = typename Isa::I;
  F logit[kRows];
  for (F& l : logit) l = Isa::set(0.0f);
  const auto fold = [&](int g, const I(&total)[kRows]) __attribute__((always_inline)) {
    const F scale = Isa::load(scratch.k_scale[g] + first);
    const F offset = Isa::load(scratch.k_offset[g] + first);
    for (int r = 0; r < kRows; ++r) {
      const F dot = Isa::mul(Isa::to_float(total[r]), Isa::set(rows[r].q_scale[g]));
      logit[r] = Isa::fma(dot, scale, Isa::fma(offset, Isa::set(rows[r].q_sum[g]), logit[r]));
    }
  };
  I total[kRows];
  if (use_score_tiles<Isa>(k)) {
    if constexpr (Isa::kTiles) {
      unpack_scores<Isa, kBits>(k, codes, chunk_stride, scratch);
      for (int g = 0; g < k.num_groups; ++g) {
        score_tiles<Isa, kRows>(g * k.group_size, k.group_size, scratch, total);
        fold(g, total);
      }
    }
  } else if (k.num_groups == 1) {
    for (I& t : total) t = Isa::zero();
    score_row<Isa, kBits, kRows>(k, codes, chunk_stride, rows, total);
    fold(0, total);
  } else {
    I x[kMaxRowBytes / kChunkBytes][4];
    for (int c = 0; c < k.num_chunks; ++c) Isa::transpose4(codes + c * chunk_stride, x[c]);
    const int cells = k.group_size / 16;
    for (int g = 0; g < k.num_groups; ++g) {
      for (I& t : total) t = Isa::zero();
      score_group<Isa, kBits, kRows>(x, k.num_chunks, g * cells, cells, rows, total);
      fold(g, total);
    }
  }
  for (int r = 0; r < kRows; ++r) Isa::store(scratch.p[r] + first, logit[r]);
}

// `prefetch` is null if another row tile has been here: else the tiles' parameters and V codes are
// unpacked on the way, in the shadow of the dots.
template <typename Isa, int kBits, int kRows>
void score_block(const PageLayout& layout, const TokenBlock& block, const RowState* rows,
                 DecodeScratch& scratch, const Prefetcher* prefetch) {
  if constexpr (Isa::kTiles) {
    if (use_score_tiles<Isa>(layout.k))
      load_query_tiles<Isa, kRows>(rows, layout.head_dim, scratch);
  }
  for (int i = 0; i < block.num_tiles; ++i) {
    if (prefetch != nullptr) {
      (*prefetch)(block.begin + i * kTileTokens);
      load_params<Isa>(layout, block, i, scratch);
      if constexpr (Isa::kStoreQuads) interleave_values<Isa>(layout, block, i, scratch);
    }
    for (int t = 0; t < kTileTokens; t += Isa::kLanes) {
      score_vector<Isa, kBits, kRows>(layout.k, block.tiles[i].k + t * kChunkBytes,
                                      block.chunk_stride, i * kTileTokens + t, rows, scratch);
    }
  }
}

}  // namespace foscar::cpu
