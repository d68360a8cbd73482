// The tile unit in plain C++, bit by bit what the instructions do: for tests of the AMX algorithm
// on any machine, and the definition of the operations.
//
//   tiles 0..3, 6, 7: 8 rows of 64 bytes     tiles 4, 5: 16 rows of 64 bytes
//   tile_dot<C, A, B>:  C[m][n] += sum over k < 16, i < 4 of A[m][4k + i] (signed) * B[k][4n + i]
//   (unsigned)
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/cpu/isa/scalar.h"

namespace foscar::cpu {

struct EmulatedTiles : Scalar {
  static constexpr bool kTiles = true;
  struct TileScope {
    ~TileScope() {}  // not trivial, so that a scope is never an unused variable
  };

  template <int kTile>
  static void tile_zero() {
    std::memset(tile(kTile), 0, kTileBytes);
  }
  template <int kTile>
  static void tile_load(const void* p, std::int64_t stride) {
    for (int row = 0; row < rows_of(kTile); ++row) {
      std::memcpy(tile(kTile) + row * 64, static_cast<const std::uint8_t*>(p) + row * stride, 64);
    }
  }
  template <int kTile>
  static void tile_store(void* p, std::int64_t stride) {
    for (int row = 0; row < rows_of(kTile); ++row) {
      std::memcpy(static_cast<std::uint8_t*>(p) + row * stride, tile(kTile) + row * 64, 64);
    }
  }
  template <int kC, int kA, int kB>
  static void tile_dot() {
    const std::uint8_t* a = tile(kA);
    const std::uint8_t* b = tile(kB);
    for (int m = 0; m < rows_of(kA); ++m) {
      std::int32_t c[16];
      std::memcpy(c, tile(kC) + m * 64, 64);
      for (int k = 0; k < 16; ++k) {
        for (int n = 0; n < 16; ++n) {
          for (int i = 0; i < 4; ++i) {
            c[n] += static_cast<std::int8_t>(a[m * 64 + 4 * k + i]) * b[k * 64 + 4 * n + i];
          }
        }
      }
      std::memcpy(tile(kC) + m * 64, c, 64);
    }
  }

 private:
  static constexpr int kTileBytes = 16 * 64;
  static constexpr int rows_of(int t) { return t == 4 || t == 5 ? 16 : 8; }
  static std::uint8_t* tile(int t) {
    alignas(64) thread_local std::uint8_t tiles[8][kTileBytes];
    return tiles[t];
  }
};

}  // namespace foscar::cpu
