// The two products of decode as tile products, for instruction sets with kTiles. Rows of tile A are
// the bytes of up to four query rows, high and low: row 2r is high, row 2r + 1 is low. Columns of B
// and C are lanes, so a row of B is exactly one register of the vector path:
//
//   scores   C[row][token]   += A: query bytes of 64 channels    B row k: 4 channels of 16 tokens,
//   from transpose4 values   C[row][channel] += A: weight bytes of 64 tokens     B row k: 4 tokens
//   of 16 channels, from interleave4
//
// A stays in tiles 0..3 (64 channels, or 64 tokens, each); B goes through memory and tiles 4, 5; C
// is tile 6. Four query rows fill half of a tile's 16 rows; more rows would want other shapes.
#pragma once

#include <bit>
#include <cstring>

#include "backends/cpu/generic/block.h"

namespace foscar::cpu {

inline constexpr int kTileK =
    64;  // bytes of A per row: channels (scores) or tokens (values) per tile

template <typename Isa>
[[gnu::always_inline]] inline void load_a_tiles(const std::int8_t* a, int num_bytes) {
  Isa::template tile_load<0>(a, kMaxBlockTokens);
  if (num_bytes > 1 * kTileK) Isa::template tile_load<1>(a + 1 * kTileK, kMaxBlockTokens);
  if (num_bytes > 2 * kTileK) Isa::template tile_load<2>(a + 2 * kTileK, kMaxBlockTokens);
  if (num_bytes > 3 * kTileK) Isa::template tile_load<3>(a + 3 * kTileK, kMaxBlockTokens);
}

// C += A tile `index` times b; b alternates between tiles 4 and 5.
template <typename Isa>
[[gnu::always_inline]] inline void add_tile_product(int index, const std::uint8_t* b) {
  switch (index) {
    case 0:
      Isa::template tile_load<4>(b, 64);
      Isa::template tile_dot<6, 0, 4>();
      break;
    case 1:
      Isa::template tile_load<5>(b, 64);
      Isa::template tile_dot<6, 1, 5>();
      break;
    case 2:
      Isa::template tile_load<4>(b, 64);
      Isa::template tile_dot<6, 2, 4>();
      break;
    default:
      Isa::template tile_load<5>(b, 64);
      Isa::template tile_dot<6, 3, 5>();
      break;
  }
}

// C as one register per query row: 256 * high + low.
template <typename Isa, int kRows>
[[gnu::always_inline]] inline void read_c_tile(DecodeScratch& scratch,
                                               typename Isa::I (&total)[kRows]) {
  Isa::template tile_store<6>(scratch.c_tile, 64);
  for (int r = 0; r < kRows; ++r) {
    total[r] = Isa::collect(Isa::zero(), Isa::load(scratch.c_tile[2 * r]),
                            Isa::load(scratch.c_tile[2 * r + 1]));
  }
}

// Before the scores of a block: the query bytes of the row tile into tiles 0..3.
template <typename Isa, int kRows>
void load_query_tiles(const RowState* rows, int head_dim, DecodeScratch& scratch) {
  for (int r = 0; r < kRows; ++r)
    std::memcpy(scratch.q_tile[2 * r], rows[r].q_bytes, sizeof rows[r].q_bytes);
  load_a_tiles<Isa>(scratch.q_tile[0], head_dim);
}

// Codes of 16 tokens as rows of B: channel 4k .. 4k+3 of all tokens is row k of scratch.b_tiles.
template <typename Isa, int kBits>
void unpack_scores(const SideLayout& k, const std::uint8_t* codes, int chunk_stride,
                   DecodeScratch& scratch) {
  for (int c = 0; c < k.num_chunks; ++c) {
    typename Isa::I x[4];
    Isa::transpose4(codes + c * chunk_stride, x);
    const auto position = [&]<int kPosition>() __attribute__((always_inline)) {
      std::uint8_t* row = scratch.b_tiles + (c * kChunkBytes + kPosition * k.row_bytes) / 4 * 64;
      for (int i = 0; i < 4; ++i) {
        Isa::store_bytes(row + i * 64,
                         Isa::template codes<kPosition * kBits>(x[i], max_code(kBits)));
      }
    };
    position.template operator()<0>();
    position.template operator()<1>();
    if constexpr (kBits == 2) {
      position.template operator()<2>();
      position.template operator()<3>();
    }
  }
}

// Integer dots of 16 tokens for channels first .. first + num_channels - 1, multiples of 64.
template <typename Isa, int kRows>
void score_tiles(int first, int num_channels, DecodeScratch& scratch,
                 typename Isa::I (&total)[kRows]) {
  Isa::template tile_zero<6>();
  for (int c = first; c < first + num_channels; c += kTileK) {
    add_tile_product<Isa>(c / kTileK, scratch.b_tiles + c / 4 * 64);
  }
  read_c_tile<Isa, kRows>(scratch, total);
}

// Before the values of a block: the weight bytes into tiles 0..3; what is beyond the last token
// must be zeros.
template <typename Isa>
void load_weight_tiles(const TokenBlock& block, DecodeScratch& scratch) {
  const int num_tokens = block.num_tiles * kTileTokens;
  const int padded = (num_tokens + kTileK - 1) / kTileK * kTileK;
  if (padded > num_tokens) {
    for (auto& row : scratch.p_bytes) {
      for (auto& part : row)
        std::memset(part + num_tokens, 0, static_cast<std::size_t>(padded - num_tokens));
    }
  }
  load_a_tiles<Isa>(scratch.p_bytes[0][0], num_tokens);
}

// Sums over the block's tokens for 16 channels: byte chunk `chunk` at `shift` bits.
template <typename Isa, int kBits, int kRows>
void value_tiles(const TokenBlock& block, int chunk, int shift, DecodeScratch& scratch,
                 typename Isa::I (&total)[kRows]) {
  static_assert(Isa::kLanes == 16, "a row of B is one register");
  const auto count = Isa::shift_by(shift);
  Isa::template tile_zero<6>();
  for (int first = 0; first < block.num_tiles; first += 4) {
    std::uint8_t* b = scratch.b_tiles + first / 4 * (16 * 64);
    for (int tile = first; tile < first + 4 && tile < block.num_tiles; ++tile) {
      for (int q = 0; q < 4; ++q) {
        typename Isa::I y[1];
        Isa::interleave4(block.tiles[tile].v + chunk * block.chunk_stride + q * 64, y);
        Isa::store_bytes(b + ((tile - first) * 4 + q) * 64,
                         Isa::codes(y[0], count, max_code(kBits)));
      }
    }
    add_tile_product<Isa>(first / 4, b);
  }
  read_c_tile<Isa, kRows>(scratch, total);
}

}  // namespace foscar::cpu
