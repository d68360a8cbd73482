// The shapes that exist for one pair of bit widths: head_dim 64 and 128 with one or two column tiles per warp, head_dim 256
// with one (its accumulators fill the registers), each with one parameter group per row or one per 32 channels.
#pragma once

#include <array>

#include "backends/cuda/decode/entry.h"
#include "backends/cuda/decode/kernel.cuh"

namespace foscar::cuda {

template <int kKBits, int kVBits, int kHeadDim, int kColumnTiles, int kGroups>
KernelEntry decode_entry() {
  using C = Config<kKBits, kVBits, kHeadDim, kColumnTiles, kGroups>;
  return {kKBits,
          kVBits,
          kHeadDim,
          kColumnTiles,
          kGroups,
          max_warps<C>(),
          reinterpret_cast<const void*>(&decode_folded<C>),
          &fixed_shared_bytes<C>};
}

template <int kKBits, int kVBits>
std::span<const KernelEntry> decode_entries() {
  static const std::array entries{
      decode_entry<kKBits, kVBits, 64, 1, 1>(),  decode_entry<kKBits, kVBits, 64, 2, 1>(),
      decode_entry<kKBits, kVBits, 128, 1, 1>(), decode_entry<kKBits, kVBits, 128, 2, 1>(),
      decode_entry<kKBits, kVBits, 256, 1, 1>(), decode_entry<kKBits, kVBits, 64, 1, 2>(),
      decode_entry<kKBits, kVBits, 128, 1, 4>(), decode_entry<kKBits, kVBits, 256, 1, 8>(),
  };
  return entries;
}

}  // namespace foscar::cuda
