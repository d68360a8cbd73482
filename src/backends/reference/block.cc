// See block.h.
#include "backends/reference/block.h"

#include <algorithm>

namespace foscar::reference {

std::uint8_t* block_at(const PoolView& pool, std::int64_t page, int head) {
  return pool.data + page * pool.page_stride + head * pool.head_stride;
}

int read_code(const std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
              int channel) {
  const int shift = code_position(channel, layout.head_dim, side.bits).shift;
  return extract_code(block[code_offset(layout, side, slot, channel)], shift, side.bits);
}

AffineParams read_params(const std::uint8_t* block, const PageLayout& layout,
                         const SideLayout& side, int slot, int channel) {
  const std::uint8_t* pair = block + params_offset(layout, side, slot, channel);
  return {load_as_float(pair, 0, layout.param_dtype), load_as_float(pair, 1, layout.param_dtype)};
}

void clear_row(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot) {
  for (int chunk = 0; chunk < side.num_chunks; ++chunk) {
    std::fill_n(block + chunk_offset(layout, side, slot, chunk), kChunkBytes, std::uint8_t{0});
  }
}

void write_code(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
                int channel, int code) {
  const int shift = code_position(channel, layout.head_dim, side.bits).shift;
  block[code_offset(layout, side, slot, channel)] |= static_cast<std::uint8_t>(code << shift);
}

void write_params(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
                  int channel, AffineParams params) {
  std::uint8_t* pair = block + params_offset(layout, side, slot, channel);
  store_from_float(pair, 0, layout.param_dtype, params.scale);
  store_from_float(pair, 1, layout.param_dtype, params.offset);
}

TokenPlace find_token(const PageTableView& table, const PoolView& pool, int b, int head, int t) {
  const std::int64_t page = table.row(b)[t / table.page_size];
  return {block_at(pool, page, head), t % table.page_size};
}

}  // namespace foscar::reference
