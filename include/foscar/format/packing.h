// Packing: how the codes of one (token, KV head) lie in a row of bytes.
//
// A row holds head_dim codes in row_bytes = head_dim * bits / 8 bytes. Byte j, position p (bits p*bits and up)
// holds channel j + p * row_bytes: one mask of a vector of bytes is a run of consecutive channels.
//
//     INT2, head_dim 128: 32 bytes                     INT4, head_dim 128: 64 bytes
//     byte j   bits 7..6  5..4  3..2  1..0             byte j   bits 7..4  3..0
//     channel      j+96   j+64  j+32  j                channel      j+64   j
//
// Seen as 32-bit words the same order gives tensor-core operands by masks alone: word w holds bytes 4w..4w+3, so
// `word & 0x03030303` is four 8-bit operands (channels 4w .. 4w+3), `word & 0x0C0C0C0C` is four more, worth 4 times
// their codes (channels 4w + row_bytes ..), and so on: position p weighs 2^(p * bits).
//
// In a page a row is cut into 16-byte chunks (layout/page_layout.h); rows that are not whole chunks are padded with
// zero bytes, whose channels do not exist for the numbers.
#pragma once

#include <cstdint>

#include "foscar/hd.h"

namespace foscar {

inline constexpr int kChunkBytes = 16;

FOSCAR_HD constexpr int codes_per_byte(int bits) { return 8 / bits; }
FOSCAR_HD constexpr int max_code(int bits) { return (1 << bits) - 1; }

// Bytes that carry codes in one row.
FOSCAR_HD constexpr int row_bytes(int head_dim, int bits) { return head_dim * bits / 8; }
// The same, padded to whole 16-byte chunks: what a row occupies in a page.
FOSCAR_HD constexpr int stored_row_bytes(int head_dim, int bits) {
  return (row_bytes(head_dim, bits) + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
}

// Where channel c lives in its row.
struct CodePosition {
  int byte;   // 0 .. row_bytes-1
  int shift;  // bits
};
FOSCAR_HD constexpr CodePosition code_position(int channel, int head_dim, int bits) {
  const int bytes = row_bytes(head_dim, bits);
  return {channel % bytes, channel / bytes * bits};
}
// The inverse: the channel at byte j, position p.
FOSCAR_HD constexpr int channel_at(int byte, int position, int head_dim, int bits) {
  return byte + position * row_bytes(head_dim, bits);
}

FOSCAR_HD constexpr int extract_code(std::uint8_t byte, int shift, int bits) {
  return (byte >> shift) & max_code(bits);
}

static_assert(row_bytes(128, 2) == 32 && row_bytes(128, 4) == 64 && stored_row_bytes(80, 2) == 32);
static_assert(code_position(127, 128, 2).byte == 31 && code_position(127, 128, 2).shift == 6);
static_assert(code_position(64, 128, 4).byte == 0 && code_position(64, 128, 4).shift == 4);

}  // namespace foscar
