// AMX: the byte products of AVX-512 VNNI, 16 x 16 x 64 at a time, in eight tile registers per core.
// Everything else is AVX-512. The meaning of the tile operations: emulated_tiles.h. All tile
// instructions are assembly: GCC 12's intrinsics do not tell the compiler that they touch memory.
//
// The system hands out the tile registers on request (request_tiles(), once per process) and each
// thread must configure them before use (TileScope): tiles 0..3 and 6, 7 have 8 rows, tiles 4, 5
// have 16; all rows are 64 bytes.
#pragma once

#include <cstdint>

#include "backends/cpu/isa/avx512.h"

namespace foscar::cpu {

struct Amx : Avx512 {
  static constexpr bool kTiles = true;

  class TileScope {
   public:
    TileScope() {
      alignas(64)
          std::uint8_t config[64] = {1};  // palette 1; bytes 16..: row bytes (16 bit); 48..: rows
      for (int t = 0; t < 8; ++t) {
        config[16 + 2 * t] = 64;
        config[48 + t] = t == 4 || t == 5 ? 16 : 8;
      }
      __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
    }
    ~TileScope() { __asm__ volatile("tilerelease" : : : "memory"); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
  };

  template <int kTile>
  static void tile_zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void tile_load(const void* p, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(p), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  static void tile_store(void* p, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(p), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kC, int kA, int kB>
  static void tile_dot() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace foscar::cpu
