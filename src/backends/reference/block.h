// One (page, KV head) block read and written element by element: where the format's words become
// code.
#pragma once

#include "dispatch/backend.h"
#include "foscar/format/affine.h"
#include "foscar/layout/page_layout.h"

namespace foscar::reference {

// Start of the block of (page, head), page_head_bytes long.
std::uint8_t* block_at(const PoolView& pool, std::int64_t page, int head);

// The code of (slot, channel).
int read_code(const std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
              int channel);
// The (scale, offset) of (slot, channel).
AffineParams read_params(const std::uint8_t* block, const PageLayout& layout,
                         const SideLayout& side, int slot, int channel);

// Writes zeros to the whole stored row of `slot`, padding included.
void clear_row(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot);
// Sets the code of (slot, channel) in a cleared row.
void write_code(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
                int channel, int code);
void write_params(std::uint8_t* block, const PageLayout& layout, const SideLayout& side, int slot,
                  int channel, AffineParams params);

// Block and slot of token t of request b.
struct TokenPlace {
  const std::uint8_t* block;
  int slot;
};
TokenPlace find_token(const PageTableView& table, const PoolView& pool, int b, int head, int t);

}  // namespace foscar::reference
