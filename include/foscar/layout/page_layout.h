// PageLayout: where everything lies inside one (page, KV head) block.
//
//     K codes | V codes | parameters                    each plane starts 16-byte aligned
//
// Codes are stored chunk by chunk: a row is C = stored_row_bytes / 16 chunks, and chunk c of token slot s lies at
// (c * page_size + s) * 16 of its plane. Eight consecutive tokens of one chunk are 128 contiguous bytes, which
// a matrix load reads without bank conflicts, and the block needs no rearrangement on its way to shared memory.
//
// Parameters are (scale, offset) pairs of param_dtype:
//   both sides token-wise   one row per slot: K's groups, then V's             [page_size][k_groups + v_groups]
//   a channel-wise side     [page_size / group_size][head_dim]; K's part first, then V's, each 16-byte aligned
//
// A pool is uint8 [num_pages, num_kv_heads, page_head_bytes] with explicit page and head strides, so copying or
// transferring a page is one contiguous copy per KV head.
#pragma once

#include <cstdint>

#include "foscar/format/kv_format.h"
#include "foscar/format/packing.h"
#include "foscar/hd.h"

namespace foscar {

// The K or the V half of a block. Offsets are bytes from the start of the block.
struct SideLayout {
  int bits;
  QuantAxis axis;
  int group_size;         // channels (kToken) or tokens (kChannel)
  int num_groups;         // groups per row (kToken) or per page and channel (kChannel)
  int row_bytes;          // bytes that carry codes
  int num_chunks;         // 16-byte chunks per stored row
  int codes_offset;       // start of the code plane
  int params_offset;      // start of this side's parameters
  int params_row_stride;  // bytes between token slots (kToken) or between token groups (kChannel)
};

struct PageLayout {
  SideLayout k;
  SideLayout v;
  DType param_dtype;
  int head_dim;
  int page_size;        // tokens
  int page_head_bytes;  // bytes of one (page, KV head) block, a multiple of 16

  // Bytes of one (scale, offset) pair.
  FOSCAR_HD constexpr int pair_bytes() const { return 2 * dtype_bytes(param_dtype); }
};

FOSCAR_HD constexpr int align16(int bytes) { return (bytes + 15) / 16 * 16; }

// Pre-condition: format_problem(format, head_dim, page_size) is empty.
FOSCAR_HD constexpr PageLayout make_page_layout(const KvFormat& format, int head_dim,
                                                int page_size) {
  const auto side = [&](const SideFormat& f) {
    const bool token_wise = f.axis == QuantAxis::kToken;
    return SideLayout{.bits = f.bits,
                      .axis = f.axis,
                      .group_size = f.group_size,
                      .num_groups = (token_wise ? head_dim : page_size) / f.group_size,
                      .row_bytes = row_bytes(head_dim, f.bits),
                      .num_chunks = stored_row_bytes(head_dim, f.bits) / kChunkBytes,
                      .codes_offset = 0,
                      .params_offset = 0,
                      .params_row_stride = 0};
  };
  PageLayout layout{side(format.k), side(format.v), format.param_dtype, head_dim, page_size, 0};
  SideLayout& k = layout.k;
  SideLayout& v = layout.v;
  const int pair = layout.pair_bytes();
  v.codes_offset = page_size * k.num_chunks * kChunkBytes;
  k.params_offset = v.codes_offset + page_size * v.num_chunks * kChunkBytes;
  if (k.axis == QuantAxis::kToken && v.axis == QuantAxis::kToken) {
    k.params_row_stride = v.params_row_stride = (k.num_groups + v.num_groups) * pair;
    v.params_offset = k.params_offset + k.num_groups * pair;
    layout.page_head_bytes = align16(k.params_offset + page_size * k.params_row_stride);
    return layout;
  }
  const auto plane = [&](SideLayout& s) {
    const bool token_wise = s.axis == QuantAxis::kToken;
    s.params_row_stride = (token_wise ? s.num_groups : head_dim) * pair;
    return align16((token_wise ? page_size : s.num_groups) * s.params_row_stride);
  };
  v.params_offset = k.params_offset + plane(k);
  layout.page_head_bytes = v.params_offset + plane(v);
  return layout;
}

// Byte offset of chunk `chunk` (0 .. num_chunks-1) of token slot `slot` from the start of the block.
FOSCAR_HD constexpr int chunk_offset(const PageLayout& layout, const SideLayout& side, int slot,
                                     int chunk) {
  return side.codes_offset + (chunk * layout.page_size + slot) * kChunkBytes;
}

// Byte offset of the byte that holds `channel` of `slot`; its bits start at code_position(channel).shift.
FOSCAR_HD constexpr int code_offset(const PageLayout& layout, const SideLayout& side, int slot,
                                    int channel) {
  const int byte = channel % side.row_bytes;
  return chunk_offset(layout, side, slot, byte / kChunkBytes) + byte % kChunkBytes;
}

// Byte offset of the (scale, offset) pair of (slot, channel).
FOSCAR_HD constexpr int params_offset(const PageLayout& layout, const SideLayout& side, int slot,
                                      int channel) {
  const bool token_wise = side.axis == QuantAxis::kToken;
  const int row = token_wise ? slot : slot / side.group_size;
  const int column = token_wise ? channel / side.group_size : channel;
  return side.params_offset + row * side.params_row_stride + column * layout.pair_bytes();
}

// Bytes of a compact pool [num_pages, num_kv_heads, page_head_bytes].
FOSCAR_HD constexpr std::int64_t pool_bytes(const PageLayout& layout, std::int64_t num_pages,
                                            std::int64_t num_kv_heads) {
  return num_pages * num_kv_heads * layout.page_head_bytes;
}

namespace layout_check {
constexpr KvFormat token(int bits, int group_size, DType params) {
  return {{bits, QuantAxis::kToken, group_size}, {bits, QuantAxis::kToken, group_size}, params};
}
// Bytes per token and KV head at head_dim 128, K and V together; BF16 has 512.
static_assert(make_page_layout(token(2, 128, DType::kF32), 128, 64).page_head_bytes == 64 * 80);
static_assert(make_page_layout(token(2, 128, DType::kF16), 128, 64).page_head_bytes == 64 * 72);
static_assert(make_page_layout(token(4, 128, DType::kF32), 128, 64).page_head_bytes == 64 * 144);
static_assert(make_page_layout(token(4, 128, DType::kBF16), 128, 64).page_head_bytes == 64 * 136);
static_assert(make_page_layout(token(2, 32, DType::kF32), 128, 64).page_head_bytes == 64 * 128);
// A page of one token wastes nothing with FP32 parameters; with 16-bit ones 72 is padded to 80.
static_assert(make_page_layout(token(2, 128, DType::kF32), 128, 1).page_head_bytes == 80);
static_assert(make_page_layout(token(2, 128, DType::kF16), 128, 1).page_head_bytes == 80);
}  // namespace layout_check

}  // namespace foscar
