// The instances for one type of the output, best first for each head_dim.
#pragma once

#include "backends/cuda/dequantize/entry.h"
#include "backends/cuda/dequantize/kernel.cuh"

namespace foscar::cuda {

template <DType kDType, int kHeadDim, bool kWide>
DequantizeKernel dequantize_entry() {
  return {kHeadDim, kWide, kDequantizeThreads / lanes_per_row(kHeadDim),
          reinterpret_cast<const void*>(&dequantize_rows<kDType, kHeadDim, kWide>)};
}

template <DType kDType>
std::span<const DequantizeKernel> dequantize_entries() {
  static const std::array entries{
      dequantize_entry<kDType, 64, true>(),  dequantize_entry<kDType, 64, false>(),
      dequantize_entry<kDType, 128, true>(), dequantize_entry<kDType, 128, false>(),
      dequantize_entry<kDType, 256, true>(), dequantize_entry<kDType, 256, false>(),
  };
  return entries;
}

}  // namespace foscar::cuda
