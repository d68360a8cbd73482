// quantize_append for one token: per group the smallest and largest value, (scale, offset) by
// fit_affine(), then codes with the arithmetic of encode_affine(), operation by operation, so that
// every instruction set writes the same bytes.
#pragma once

#include <cstring>
#include <limits>

#include "backends/cpu/generic/query.h"
#include "foscar/format/affine.h"

namespace foscar::cpu {

// x: [group_size] values. codes: one byte per value.
template <typename Isa>
AffineParams quantize_group(const float* x, int group_size, int bits, DType param_dtype,
                            std::uint8_t* codes) {
  using F = typename Isa::F;
  F smallest = Isa::set(std::numeric_limits<float>::infinity());
  F largest = Isa::set(-std::numeric_limits<float>::infinity());
  F poison = Isa::set(0.0f);  // NaN if any value is NaN or infinite
  for (int c = 0; c < group_size; c += Isa::kLanes) {
    const F value = Isa::load(x + c);
    smallest = Isa::min(value, smallest);
    largest = Isa::max(value, largest);
    poison = Isa::add(poison, Isa::mul(value, Isa::set(0.0f)));
  }
  const F minus_smallest = Isa::sub(Isa::set(0.0f), smallest);
  const AffineParams params = fit_affine(-Isa::max_lane(minus_smallest), Isa::max_lane(largest),
                                         Isa::sum(poison) == 0.0f, bits, param_dtype);
  const float top = static_cast<float>(max_code(bits));
  for (int c = 0; c < group_size; c += Isa::kLanes) {
    F position =
        Isa::div(Isa::sub(Isa::load(x + c), Isa::set(params.offset)), Isa::set(params.scale));
    position = Isa::add(position, Isa::set(0.5f));
    // max() with 0 second turns NaN and all that is not above 0 into 0.
    position = Isa::min(Isa::max(position, Isa::set(0.0f)), Isa::set(top));
    alignas(64) std::int32_t w[Isa::kLanes];
    Isa::store(w, Isa::truncate(position));
    for (int l = 0; l < Isa::kLanes; ++l) codes[c + l] = static_cast<std::uint8_t>(w[l]);
  }
  return params;
}

template <typename Isa>
void append_row(const TokenRows& rows, std::int64_t token, int head, const PageLayout& layout,
                const SideLayout& side, int slot, std::uint8_t* block) {
  alignas(64) float x[kMaxHeadDim];
  alignas(64) std::uint8_t codes[kMaxHeadDim];
  alignas(64) std::uint8_t packed[kMaxRowBytes];
  const std::int64_t element = token * rows.token_stride + head * rows.head_stride;
  load_floats<Isa>(static_cast<const std::uint8_t*>(rows.data) + element * dtype_bytes(rows.dtype),
                   rows.dtype, layout.head_dim, x);
  for (int g = 0; g < side.num_groups; ++g) {
    const int first = g * side.group_size;
    const AffineParams params = quantize_group<Isa>(x + first, side.group_size, side.bits,
                                                    layout.param_dtype, codes + first);
    std::uint8_t* pair = block + params_offset(layout, side, slot, first);
    store_from_float(pair, 0, layout.param_dtype, params.scale);
    store_from_float(pair, 1, layout.param_dtype, params.offset);
  }
  for (int j = 0; j < side.row_bytes; ++j) packed[j] = codes[j];
  for (int p = 1; p < codes_per_byte(side.bits); ++p) {
    for (int j = 0; j < side.row_bytes; ++j) {
      packed[j] =
          static_cast<std::uint8_t>(packed[j] | codes[p * side.row_bytes + j] << (p * side.bits));
    }
  }
  for (int c = 0; c < side.num_chunks; ++c) {
    std::memcpy(block + chunk_offset(layout, side, slot, c), packed + c * kChunkBytes, kChunkBytes);
  }
}

template <typename Isa>
void append_token(const AppendArgs& args, std::int64_t token) {
  const std::int64_t target = args.slot(token);
  if (target < 0) return;
  const std::int64_t page = target / args.layout.page_size;
  const int slot = static_cast<int>(target % args.layout.page_size);
  for (int head = 0; head < args.num_kv_heads; ++head) {
    std::uint8_t* block =
        args.pool.data + page * args.pool.page_stride + head * args.pool.head_stride;
    append_row<Isa>(args.k, token, head, args.layout, args.layout.k, slot, block);
    append_row<Isa>(args.v, token, head, args.layout, args.layout.v, slot, block);
  }
}

}  // namespace foscar::cpu
