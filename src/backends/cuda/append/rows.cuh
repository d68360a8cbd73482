// The instances for one type of the input, best first for each head_dim: one group per row with
// wide accesses, any groups with wide accesses, anything.
#pragma once

#include "backends/cuda/append/entry.h"
#include "backends/cuda/append/kernel.cuh"

namespace foscar::cuda {

template <DType kDType, int kHeadDim, bool kOneGroup, bool kWide>
AppendKernel append_entry() {
  return {kHeadDim, kOneGroup, kWide, append_tokens_per_block(kHeadDim),
          reinterpret_cast<const void*>(&append_rows<kDType, kHeadDim, kOneGroup, kWide>)};
}

template <DType kDType>
std::span<const AppendKernel> append_entries() {
  static const std::array entries{
      append_entry<kDType, 64, true, true>(),    append_entry<kDType, 64, false, true>(),
      append_entry<kDType, 64, false, false>(),  append_entry<kDType, 128, true, true>(),
      append_entry<kDType, 128, false, true>(),  append_entry<kDType, 128, false, false>(),
      append_entry<kDType, 256, true, true>(),   append_entry<kDType, 256, false, true>(),
      append_entry<kDType, 256, false, false>(),
  };
  return entries;
}

}  // namespace foscar::cuda
