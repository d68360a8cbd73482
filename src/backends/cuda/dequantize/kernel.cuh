// dequantize on the device: x = fma(scale, code, offset) in FP32, rounded to the type of the
// output.
//
//   block   one (request, KV head), consecutive tokens; blocks beyond kv_len end at once
//   lane    16 channels of a token's K row and of its V row (row_lanes.h): 8 bytes of codes each,
//           both on their way before either is used
//
// A code becomes a float without a conversion: 0x4b0000cc is the float 2^23 + cc, so one byte
// permute and one exact subtraction are enough.
#pragma once

#include <cstdint>

#include "backends/cuda/append/octet.cuh"
#include "backends/cuda/append/row_lanes.h"
#include "backends/cuda/dequantize/entry.h"

namespace foscar::cuda {

struct ScaleOffset {
  float scale;
  float offset;
};

// A pair as the page holds it: FP32 in two words, 16-bit types in the first. It is unpacked only
// when all loads of the lane are on their way.
struct RawPair {
  uint2 words;

  __device__ void load(const std::uint8_t* row, int group, DType dtype) {
    if (dtype == DType::kF32) {
      words = __ldg(reinterpret_cast<const uint2*>(row) + group);
    } else {
      words.x = __ldg(reinterpret_cast<const unsigned*>(row) + group);
    }
  }
  __device__ ScaleOffset unpack(DType dtype) const {
    if (dtype == DType::kF32) return {__uint_as_float(words.x), __uint_as_float(words.y)};
    if (dtype == DType::kBF16) {
      return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u)};
    }
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words.x));
    return {pair.x, pair.y};
  }
};

// Code in byte kByte of a word whose bytes are codes, as a float.
template <int kByte>
__device__ inline float code_to_float(std::uint32_t codes) {
  return __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440 | kByte)) - 0x1p23f;
}

__device__ inline void dequantize4(std::uint32_t codes, ScaleOffset params, float* x) {
  x[0] = fmaf(params.scale, code_to_float<0>(codes), params.offset);
  x[1] = fmaf(params.scale, code_to_float<1>(codes), params.offset);
  x[2] = fmaf(params.scale, code_to_float<2>(codes), params.offset);
  x[3] = fmaf(params.scale, code_to_float<3>(codes), params.offset);
}

// What a lane reads of one row.
struct PackedShare {
  uint2 bytes;
  RawPair params[2];  // of the low and the high octet

  template <int kHeadDim>
  __device__ void load(const PageLayout& layout, const SideLayout& side, int group_log2,
                       const std::uint8_t* block, int slot, int lane) {
    const auto byte = static_cast<unsigned>(first_byte(lane, kHeadDim, side.bits));
    const int offset = chunk_offset(layout, side, slot, static_cast<int>(byte / kChunkBytes));
    bytes = __ldg(reinterpret_cast<const uint2*>(
        block + (static_cast<unsigned>(offset) + byte % kChunkBytes)));
    const std::uint8_t* row =
        block + static_cast<unsigned>(side.params_offset + slot * side.params_row_stride);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      params[half].load(row, first_channel(lane, half, kHeadDim) >> group_log2, layout.param_dtype);
    }
  }

  template <DType kDType, int kHeadDim, bool kWide>
  __device__ void store(int bits, DType param_dtype, int lane, std::uint8_t* row) const {
    const int low_shift = low_octet_shift(lane, kHeadDim, bits);
    const std::uint32_t mask = bits == 2 ? 0x03030303u : 0x0f0f0f0fu;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int shift = low_shift + half * kHighOctetShift;
      const ScaleOffset pair = params[half].unpack(param_dtype);
      float x[8];
      dequantize4(bytes.x >> shift & mask, pair, x);
      dequantize4(bytes.y >> shift & mask, pair, x + 4);
      Octet<kDType, kWide> octet;
      octet.pack(x);
      octet.store(row + first_channel(lane, half, kHeadDim) * dtype_bytes(kDType));
    }
  }
};

template <DType kDType, int kHeadDim, bool kWide>
__global__ void __launch_bounds__(kDequantizeThreads)
    dequantize_rows(const __grid_constant__ DequantizeKernelArgs args) {
  constexpr int kLanes = lanes_per_row(kHeadDim);
  constexpr int kTokens = kDequantizeThreads / kLanes;
  constexpr int kElementBytes = dtype_bytes(kDType);
  const DequantizeArgs& call = args.call;
  const PageLayout& layout = call.layout;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  // Heads innermost: the blocks of neighbouring heads write neighbouring memory at the same time.
  const auto num_heads = static_cast<unsigned>(call.num_kv_heads);
  const unsigned outer = blockIdx.x / num_heads;
  const int head = static_cast<int>(blockIdx.x - outer * num_heads);
  const int request = static_cast<int>(outer / args.token_blocks);
  const int token = static_cast<int>(outer % args.token_blocks) * kTokens +
                    static_cast<int>(threadIdx.x / kLanes);
  if (token >= min(static_cast<std::int64_t>(call.table.kv_len(request)), call.max_kv_len)) return;

  const std::int64_t page = __ldg(call.table.row(request) + (token >> args.page_log2));
  const std::uint8_t* block =
      call.pool.data + page * call.pool.page_stride + head * call.pool.head_stride;
  const int slot = token & (layout.page_size - 1);
  PackedShare k, v;
  k.load<kHeadDim>(layout, layout.k, args.k_group_log2, block, slot, lane);
  v.load<kHeadDim>(layout, layout.v, args.v_group_log2, block, slot, lane);
  const auto row = [&](const TokenRows& rows, std::int64_t batch_stride) {
    return static_cast<std::uint8_t*>(rows.data) +
           (request * batch_stride + token * rows.token_stride + head * rows.head_stride) *
               kElementBytes;
  };
  k.store<kDType, kHeadDim, kWide>(layout.k.bits, layout.param_dtype, lane,
                                   row(call.k, call.k_batch_stride));
  v.store<kDType, kHeadDim, kWide>(layout.v.bits, layout.param_dtype, lane,
                                   row(call.v, call.v_batch_stride));
}

}  // namespace foscar::cuda
