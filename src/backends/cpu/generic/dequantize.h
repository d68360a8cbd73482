// dequantize: scale * code + offset with one rounding, for a run of tokens of one request.
#pragma once

#include "backends/cpu/generic/block.h"

namespace foscar::cpu {

template <typename Isa>
void dequantize_row(const PageLayout& layout, const SideLayout& side, const std::uint8_t* block,
                    int slot, DType dtype, std::uint8_t* out) {
  alignas(64) std::int32_t codes[kMaxHeadDim];
  alignas(64) float x[kMaxHeadDim];
  for (int p = 0; p < codes_per_byte(side.bits); ++p) {
    for (int c = 0; c < side.num_chunks; ++c) {
      const std::uint8_t* bytes = block + chunk_offset(layout, side, slot, c);
      for (int j = 0; j < kChunkBytes; ++j) {
        codes[p * side.row_bytes + c * kChunkBytes + j] =
            extract_code(bytes[j], p * side.bits, side.bits);
      }
    }
  }
  for (int g = 0; g < side.num_groups; ++g) {
    const int first = g * side.group_size;
    const std::uint8_t* pair = block + params_offset(layout, side, slot, first);
    const auto scale = Isa::set(load_as_float(pair, 0, layout.param_dtype));
    const auto offset = Isa::set(load_as_float(pair, 1, layout.param_dtype));
    for (int c = first; c < first + side.group_size; c += Isa::kLanes) {
      Isa::store(x + c, Isa::fused(scale, Isa::to_float(Isa::load(codes + c)), offset));
    }
  }
  for (int c = 0; c < layout.head_dim; ++c) store_from_float(out, c, dtype, x[c]);
}

template <typename Isa>
void dequantize_tokens(const DequantizeArgs& args, int b, int begin, int end) {
  const std::int32_t* pages = args.table.row(b);
  for (int t = begin; t < end; ++t) {
    const int slot = t % args.layout.page_size;
    for (int head = 0; head < args.num_kv_heads; ++head) {
      const std::uint8_t* block = page_block(args.pool, pages[t / args.layout.page_size], head);
      const auto side = [&](const SideLayout& layout, const TokenRows& rows,
                            std::int64_t batch_stride) {
        const std::int64_t element =
            b * batch_stride + t * rows.token_stride + head * rows.head_stride;
        dequantize_row<Isa>(
            args.layout, layout, block, slot, rows.dtype,
            static_cast<std::uint8_t*>(rows.data) + element * dtype_bytes(rows.dtype));
      };
      side(args.layout.k, args.k, args.k_batch_stride);
      side(args.layout.v, args.v, args.v_batch_stride);
    }
  }
}

}  // namespace foscar::cpu
