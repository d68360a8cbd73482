// How the lanes of a warp share a row, in quantize_append and in dequantize. head_dim / 16 lanes
// hold one row; lane i has two octets of channels, half a row apart:
//
//     lane i:   channels 8i .. 8i+7   and   head_dim/2 + 8i .. head_dim/2 + 8i+7
//
// In the packing (packing.h) half a row apart is exactly 4 bits apart: the same byte, position + 1
// for INT4, + 2 for INT2. So `low | high << 4` puts a lane's 16 codes into 8 bytes:
//
//     INT4   lane i owns bytes 8i .. 8i+7 of the row alone
//     INT2   lanes i and i + lanes/2 own bytes 8i .. 8i+7 together, the upper one's codes 2 bits up
#pragma once

#include <cstdint>

#include "foscar/format/packing.h"
#include "foscar/hd.h"

namespace foscar::cuda {

inline constexpr int kOctet = 8;  // channels per half, and bytes per lane of a row of codes

FOSCAR_HD constexpr int lanes_per_row(int head_dim) { return head_dim / (2 * kOctet); }

// Lanes that hold different bytes of the row: all of them, or the lower half.
FOSCAR_HD constexpr int lanes_with_bytes(int head_dim, int bits) {
  return row_bytes(head_dim, bits) / kOctet;
}

// First of the 8 bytes that the lane's codes lie in. The choice between constants instead of a
// division by a run-time number is for the device.
FOSCAR_HD constexpr int first_byte(int lane, int head_dim, int bits) {
  return kOctet *
         (lane & ((bits == 2 ? lanes_with_bytes(head_dim, 2) : lanes_with_bytes(head_dim, 4)) - 1));
}

// Where the lane's low octet lies inside those bytes, bits; the high octet lies 4 bits further.
FOSCAR_HD constexpr int low_octet_shift(int lane, int head_dim, int bits) {
  return bits == 2 && lane >= lanes_with_bytes(head_dim, 2) ? 2 : 0;
}
inline constexpr int kHighOctetShift = 4;

// First channel of the lane's octet `half` (0 or 1).
FOSCAR_HD constexpr int first_channel(int lane, int half, int head_dim) {
  return kOctet * lane + half * (head_dim / 2);
}

static_assert(first_byte(7, 128, 4) == 56 && low_octet_shift(7, 128, 4) == 0);
static_assert(first_byte(7, 128, 2) == 24 && low_octet_shift(7, 128, 2) == 2);
static_assert(code_position(first_channel(7, 0, 128), 128, 2).byte == first_byte(7, 128, 2));
static_assert(code_position(first_channel(7, 0, 128), 128, 2).shift == low_octet_shift(7, 128, 2));
static_assert(code_position(first_channel(7, 1, 128), 128, 2).shift ==
              low_octet_shift(7, 128, 2) + kHighOctetShift);
static_assert(code_position(first_channel(7, 1, 128), 128, 4).shift ==
              low_octet_shift(7, 128, 4) + kHighOctetShift);

}  // namespace foscar::cuda
