// quantize_append on the device: rows -> (scale, offset) per group -> codes -> their slots of a
// page.
//
//   block   one KV head, consecutive tokens: they usually fill a page one after the other, where
//           their chunks are neighbours too, so a warp's stores are contiguous
//   lane    16 channels of the K and the V rows of two tokens (row_lanes.h, groups.cuh), all loaded
//           before the first is used
#pragma once

#include <cstdint>

#include "backends/cuda/append/encode.h"
#include "backends/cuda/append/entry.h"
#include "backends/cuda/append/groups.cuh"
#include "backends/cuda/append/octet.cuh"
#include "backends/cuda/append/row_lanes.h"
#include "dispatch/backend.h"

namespace foscar::cuda {

inline constexpr int kTokensPerLane = 2;

FOSCAR_HD constexpr int append_tokens_per_block(int head_dim) {
  return kTokensPerLane * kAppendThreads / lanes_per_row(head_dim);
}

// A lane's 8 bytes of a row of codes: low octet in the lower 4 bits of each byte, high octet above.
template <DType kDType, bool kWide>
__device__ inline uint2 encode_octets(const Octet<kDType, kWide> (&octets)[2],
                                      const GroupEncoder& low, const GroupEncoder& high, int bits,
                                      DType param_dtype) {
  float x[2][8];
  octets[0].unpack(x[0]);
  octets[1].unpack(x[1]);
  if (!low.is_ordinary() || !high.is_ordinary()) {
    const auto word = [&](int i) {
      return encode4_by_division(x[0][i], x[0][i + 1], x[0][i + 2], x[0][i + 3], low.params, bits) |
             encode4_by_division(x[1][i], x[1][i + 1], x[1][i + 2], x[1][i + 3], high.params, bits)
                 << kHighOctetShift;
    };
    return {word(0), word(4)};
  }
  if (param_dtype == DType::kF32) {
    const auto word = [&](int i) {
      return low.encode4<false>(x[0] + i, bits) | high.encode4<false>(x[1] + i, bits)
                                                      << kHighOctetShift;
    };
    return {word(0), word(4)};
  }
  const auto word = [&](int i) {
    return low.encode4<true>(x[0] + i, bits) | high.encode4<true>(x[1] + i, bits)
                                                   << kHighOctetShift;
  };
  return {word(0), word(4)};
}

// INT2: two lanes half a row apart have codes in the same bytes. Each keeps one side's bytes, the
// lower lane K's, the upper one V's, and sends the other side's: one exchange completes both.
template <int kHeadDim>
__device__ inline uint2 join_sides(uint2 k, uint2 v, int lane) {
  constexpr int kDistance = lanes_with_bytes(kHeadDim, 2);
  const bool upper = lane >= kDistance;
  const int shift = low_octet_shift(lane, kHeadDim, 2);
  const auto join = [&](std::uint32_t own, std::uint32_t other) {
    return own << shift | __shfl_xor_sync(~0u, other << shift, kDistance);
  };
  return {join(upper ? v.x : k.x, upper ? k.x : v.x), join(upper ? v.y : k.y, upper ? k.y : v.y)};
}

// The same for one side only: both lanes get its bytes.
template <int kHeadDim>
__device__ inline uint2 join_side(uint2 bytes, int lane) {
  const int shift = low_octet_shift(lane, kHeadDim, 2);
  bytes = {bytes.x << shift, bytes.y << shift};
  constexpr int kDistance = lanes_with_bytes(kHeadDim, 2);
  return {bytes.x | __shfl_xor_sync(~0u, bytes.x, kDistance),
          bytes.y | __shfl_xor_sync(~0u, bytes.y, kDistance)};
}

// Bytes from the start of a block to the lane's bytes of token slot 0; slot s is 16 s further.
template <int kHeadDim>
__device__ inline unsigned lane_offset(const PageLayout& layout, const SideLayout& side, int lane) {
  const auto byte = static_cast<unsigned>(first_byte(lane, kHeadDim, side.bits));
  return static_cast<unsigned>(
             chunk_offset(layout, side, 0, static_cast<int>(byte / kChunkBytes))) +
         byte % kChunkBytes;
}

// Bits of a pair as the page holds them: FP32 in two words, 16-bit types in the first.
__device__ inline uint2 param_bits(AffineParams params, DType dtype) {
  if (dtype == DType::kF32) return {__float_as_uint(params.scale), __float_as_uint(params.offset)};
  const bool is_half = dtype == DType::kF16;
  const std::uint32_t scale = is_half ? float_to_half(params.scale) : float_to_bf16(params.scale);
  const std::uint32_t offset =
      is_half ? float_to_half(params.offset) : float_to_bf16(params.offset);
  return {scale | offset << 16, 0};
}

// A lane's bytes of both sides of a token, ready to be written.
struct LaneBytes {
  uint2 k;
  uint2 v;  // unused when one exchange served both sides

  template <int kHeadDim>
  __device__ void join(const PageLayout& layout, int lane) {
    if (layout.k.bits == 2 && layout.v.bits == 2) {
      k = join_sides<kHeadDim>(k, v, lane);
    } else if (layout.k.bits == 2) {
      k = join_side<kHeadDim>(k, lane);
    } else if (layout.v.bits == 2) {
      v = join_side<kHeadDim>(v, lane);
    }
  }
  // `k_bytes` and `v_bytes` are where the lane's bytes of either side belong.
  template <int kHeadDim>
  __device__ void store(const PageLayout& layout, int lane, std::uint8_t* k_bytes,
                        std::uint8_t* v_bytes) const {
    const bool upper = lane >= lanes_with_bytes(kHeadDim, 2);
    if (layout.k.bits == 2 && layout.v.bits == 2) {
      *reinterpret_cast<uint2*>(upper ? v_bytes : k_bytes) = k;
      return;
    }
    if (layout.k.bits == 4 || !upper) *reinterpret_cast<uint2*>(k_bytes) = k;
    if (layout.v.bits == 4 || upper) *reinterpret_cast<uint2*>(v_bytes) = v;
  }
};

// Writes the parameters of the groups that begin with one of the lane's octets.
template <int kHeadDim>
__device__ inline void store_params(const AffineParams& low, const AffineParams& high, int lane,
                                    const SideLayout& side, int group_log2, DType dtype,
                                    std::uint8_t* block, int slot) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int channel = first_channel(lane, half, kHeadDim);
    if ((channel & (side.group_size - 1)) != 0) continue;
    const uint2 bits = param_bits(half == 0 ? low : high, dtype);
    std::uint8_t* row =
        block + static_cast<unsigned>(side.params_offset + slot * side.params_row_stride);
    const int group = channel >> group_log2;
    if (dtype == DType::kF32) {
      reinterpret_cast<uint2*>(row)[group] = bits;
    } else {
      reinterpret_cast<std::uint32_t*>(row)[group] = bits.x;
    }
  }
}

// One group per side: K's pair and V's are neighbours, one store.
__device__ inline void store_param_row(const AffineParams& k, const AffineParams& v,
                                       const PageLayout& layout, std::uint8_t* block, int slot) {
  const uint2 k_pair = param_bits(k, layout.param_dtype);
  const uint2 v_pair = param_bits(v, layout.param_dtype);
  std::uint8_t* pairs =
      block + static_cast<unsigned>(layout.k.params_offset + slot * layout.k.params_row_stride);
  if (layout.param_dtype == DType::kF32) {
    *reinterpret_cast<uint4*>(pairs) = {k_pair.x, k_pair.y, v_pair.x, v_pair.y};
  } else {
    *reinterpret_cast<uint2*>(pairs) = {k_pair.x, v_pair.x};
  }
}

// An entry of the slot mapping as loaded: nothing depends on it until the rows are encoded, not
// even the extension of its sign, so the loads of the rows do not wait for it.
struct RawSlot {
  uint2 words;
};
__device__ inline RawSlot load_slot(const AppendArgs& call, std::int64_t token) {
  if (call.slots_are_64bit) return {__ldg(static_cast<const uint2*>(call.slot_mapping) + token)};
  return {{__ldg(static_cast<const unsigned*>(call.slot_mapping) + token), 0}};
}

// The address in the pool of a token's block, and its slot there.
struct Place {
  std::uint8_t* block;  // null: the token is skipped
  int slot;
};
__device__ inline Place find_place(const AppendKernelArgs& args, RawSlot raw, int head) {
  const std::int64_t slot_index =
      args.call.slots_are_64bit
          ? static_cast<std::int64_t>(raw.words.x | static_cast<std::uint64_t>(raw.words.y) << 32)
          : static_cast<std::int32_t>(raw.words.x);
  if (slot_index < 0 || slot_index >= args.num_slots) return {nullptr, 0};
  const PoolView& pool = args.call.pool;
  return {pool.data + (slot_index >> args.page_log2) * pool.page_stride + head * pool.head_stride,
          static_cast<int>(slot_index) & (args.call.layout.page_size - 1)};
}

// kOneGroup: a row of K and a row of V are one group each. Without it any group sizes, head_dim
// too.
template <DType kDType, int kHeadDim, bool kOneGroup, bool kWide>
__global__ void __launch_bounds__(kAppendThreads, 2)
    append_rows(const __grid_constant__ AppendKernelArgs args) {
  constexpr int kLanes = lanes_per_row(kHeadDim);
  constexpr int kElementBytes = dtype_bytes(kDType);
  const AppendArgs& call = args.call;
  const PageLayout& layout = call.layout;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int head = static_cast<int>(blockIdx.x);
  const std::int64_t first_token =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) *
      append_tokens_per_block(kHeadDim);
  const std::int64_t tokens_left = call.num_tokens - first_token;
  if (tokens_left <= 0) return;

  // Lanes beyond the last token take part in the exchanges with values of an earlier one and store
  // nothing.
  constexpr int kTokenStep = kAppendThreads / kLanes;  // between the tokens of a lane
  int wanted[kTokensPerLane];
  int local[kTokensPerLane];
#pragma unroll
  for (int t = 0; t < kTokensPerLane; ++t) {
    wanted[t] = static_cast<int>(threadIdx.x / kLanes) + t * kTokenStep;
    local[t] = static_cast<int>(min(static_cast<std::int64_t>(wanted[t]), tokens_left - 1));
  }
  // The first octet of the lane in row t; its second one is a constant further.
  const auto lane_row = [&](const TokenRows& rows, int t) {
    const auto* first =
        static_cast<const std::uint8_t*>(rows.data) +
        (first_token * rows.token_stride + head * rows.head_stride) * kElementBytes +
        local[0] * rows.token_stride * kElementBytes + lane * (kOctet * kElementBytes);
    return t == 0 || local[1] != wanted[1] ? first
                                           : first + kTokenStep * rows.token_stride * kElementBytes;
  };
  Octet<kDType, kWide> octets[kQuad][2];  // of each row: K, V of token 0, K, V of token 1
#pragma unroll
  for (int r = 0; r < kQuad; ++r) {
    const std::uint8_t* source = lane_row(r % 2 == 0 ? call.k : call.v, r / 2);
    octets[r][0].load(source);
    octets[r][1].load(source + kHeadDim / 2 * kElementBytes);
  }
  RawSlot slots[kTokensPerLane];
#pragma unroll
  for (int t = 0; t < kTokensPerLane; ++t) slots[t] = load_slot(call, first_token + local[t]);

  const DType dtype = layout.param_dtype;
  const bool keeps_v = lane % 2 != 0;
  const int kept_bits = keeps_v ? layout.v.bits : layout.k.bits;
  const int kept_group_size = keeps_v ? layout.v.group_size : layout.k.group_size;
  Extremes<kDType> low[kQuad], high[kQuad];
#pragma unroll
  for (int r = 0; r < kQuad; ++r) {
    low[r] = Extremes<kDType>::of(octets[r][0]);
    high[r] = Extremes<kDType>::of(octets[r][1]);
    if (kOneGroup || (r % 2 == 0 ? layout.k : layout.v).num_groups == 1) {
      low[r].include(high[r]);
      high[r] = low[r];
    }
  }
  GroupEncoder low_groups[kQuad], high_groups[kQuad];
  const int num_lanes = kOneGroup ? kLanes : min(kept_group_size / kOctet, kLanes);
  fit_rows(reduce_rows<kLanes>(low, lane, num_lanes), kept_bits, dtype, low_groups);
  if constexpr (!kOneGroup)
    fit_rows(reduce_rows<kLanes>(high, lane, num_lanes), kept_bits, dtype, high_groups);

  const unsigned k_offset = lane_offset<kHeadDim>(layout, layout.k, lane);
  const unsigned v_offset = lane_offset<kHeadDim>(layout, layout.v, lane);
#pragma unroll
  for (int t = 0; t < kTokensPerLane; ++t) {
    const GroupEncoder& k_low = low_groups[2 * t];
    const GroupEncoder& v_low = low_groups[2 * t + 1];
    const GroupEncoder& k_high = kOneGroup ? k_low : high_groups[2 * t];
    const GroupEncoder& v_high = kOneGroup ? v_low : high_groups[2 * t + 1];
    LaneBytes bytes{encode_octets(octets[2 * t], k_low, k_high, layout.k.bits, dtype),
                    encode_octets(octets[2 * t + 1], v_low, v_high, layout.v.bits, dtype)};
    bytes.join<kHeadDim>(layout, lane);

    const auto [block, slot] = find_place(args, slots[t], head);
    if (block == nullptr || wanted[t] != local[t]) continue;
    bytes.store<kHeadDim>(layout, lane,
                          block + (k_offset + kChunkBytes * static_cast<unsigned>(slot)),
                          block + (v_offset + kChunkBytes * static_cast<unsigned>(slot)));
    if constexpr (kOneGroup) {
      if (lane == 0) store_param_row(k_low.params, v_low.params, layout, block, slot);
    } else {
      store_params<kHeadDim>(k_low.params, k_high.params, lane, layout.k, args.k_group_log2, dtype,
                             block, slot);
      store_params<kHeadDim>(v_low.params, v_high.params, lane, layout.v, args.v_group_log2, dtype,
                             block, slot);
    }
  }
}

}  // namespace foscar::cuda
