// The layer of primitives in plain C++: what each operation means. The other files of this folder
// offer the same names over vector registers; the algorithms in generic/ are written once over this
// interface.
//
//   F         kLanes floats                        I    kLanes 32-bit integers, or 4 * kLanes bytes
//   Acc       accumulator of byte dot products: after at most max_dots(bits) calls of dot() it must
//   be collected into I
//
// A *tile* is 16 tokens. transpose4 spreads tokens over lanes in an order that is cheap for the
// instruction set: lane l holds token token_of_lane(l). Logits and parameters stay in that order;
// split_bytes undoes it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "foscar/dtype.h"

namespace foscar::cpu {

struct Scalar {
  static constexpr int kLanes = 16;
  struct F {
    float lane[kLanes];
  };
  struct I {
    std::int32_t lane[kLanes];
  };
  using Acc = I;

  // Whether V codes are interleaved once per block and stored, or again wherever they are used.
  static constexpr bool kStoreQuads = true;
  // Tile products (emulated_tiles.h), and what a thread must hold while it uses them.
  static constexpr bool kTiles = false;
  struct TileScope {
    ~TileScope() {}  // not trivial, so that a scope is never an unused variable
  };
  // Vectors of values accumulated at a time, chosen so that accumulators for 4 rows fit the
  // registers.
  static constexpr int kValueVectors = 1;
  static constexpr int max_dots(int /*bits*/) { return 1 << 20; }
  static constexpr int token_of_lane(int lane) { return lane; }
  // Channel, within 16 consecutive ones, of lane `lane` of accumulator `part` of interleave4.
  static constexpr int channel_of_lane(int part, int lane) { return part * kLanes + lane; }

  static F set(float x) {
    F r;
    for (float& v : r.lane) v = x;
    return r;
  }
  static F load(const float* p) {
    F r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static void store(float* p, F a) { std::memcpy(p, a.lane, sizeof a.lane); }
  // Dense decode: products of BF16 pairs in one instruction, dot_bf16(acc, a, b) (avx512_bf16.h).
  static constexpr bool kBf16Dot = false;
  static F load_wide(const std::uint16_t* p, DType dtype) {
    F r;
    for (int l = 0; l < kLanes; ++l) r.lane[l] = load_as_float(p, l, dtype);
    return r;
  }
  static F add(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] += b.lane[l];
    return a;
  }
  static F sub(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] -= b.lane[l];
    return a;
  }
  static F mul(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] *= b.lane[l];
    return a;
  }
  // a * b + c. Two roundings: fmaf without hardware is a slow library call, and no bytes depend on
  // it.
  static F fma(F a, F b, F c) { return add(mul(a, b), c); }
  static F div(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] /= b.lane[l];
    return a;
  }
  // 1 / a to at least 11 bits.
  static F reciprocal(F a) { return div(set(1.0f), a); }
  // a * b + c with one rounding, for results that must be the same bits everywhere.
  static F fused(F a, F b, F c) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
    return a;
  }
  // The smaller; b where either is NaN.
  static F min(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] = a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
  }
  // The larger; b where either is NaN.
  static F max(F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
    return a;
  }
  // a in the lanes whose token, counted from the tile's first, is below `limit`, else b.
  static F select_tokens(int limit, F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] = token_of_lane(l) < limit ? a.lane[l] : b.lane[l];
    return a;
  }
  // a in the lanes below `limit`, else b.
  static F select_lanes(int limit, F a, F b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] = l < limit ? a.lane[l] : b.lane[l];
    return a;
  }
  // x where low < key <= high, else 0.
  static F keep_between(F key, float low, float high, F x) {
    for (int l = 0; l < kLanes; ++l)
      x.lane[l] = key.lane[l] > low && key.lane[l] <= high ? x.lane[l] : 0.0f;
    return x;
  }
  static float sum(F a) {
    float s = 0;
    for (float v : a.lane) s += v;
    return s;
  }
  static float max_lane(F a) {
    float m = a.lane[0];
    for (float v : a.lane) m = v > m ? v : m;
    return m;
  }
  // 2^x for x <= 0, at least 22 bits; 0 below 2^-126; NaN for NaN.
  static F exp2(F a) {
    for (float& v : a.lane) v = v < -126.0f ? 0.0f : std::exp2(v);
    return a;
  }

  static I zero() { return I{}; }
  // A shift count that is not known at compile time.
  using Shift = int;
  static Shift shift_by(int bits) { return bits; }
  template <int kShift>
  static I codes(I x, int mask) {
    return codes(x, kShift, mask);
  }
  // Every byte: (x >> shift) & mask, for shift in 0 .. 6.
  static I codes(I x, Shift shift, int mask) {
    const std::uint32_t mask4 = 0x01010101u * static_cast<std::uint32_t>(mask);
    for (std::int32_t& v : x.lane) {
      v = static_cast<std::int32_t>((static_cast<std::uint32_t>(v) >> shift) & mask4);
    }
    return x;
  }
  // Every lane of acc += sum of its four codes (unsigned bytes) times the four signed bytes at
  // `four`.
  static void dot(Acc& acc, I code_bytes, const std::int8_t* four) {
    for (std::int32_t i = 0; i < kLanes; ++i) {
      const auto c = static_cast<std::uint32_t>(code_bytes.lane[i]);
      acc.lane[i] +=
          static_cast<int>(c & 255u) * four[0] + static_cast<int>(c >> 8 & 255u) * four[1] +
          static_cast<int>(c >> 16 & 255u) * four[2] + static_cast<int>(c >> 24) * four[3];
    }
  }
  // total + 256 * high + low.
  static I collect(I total, Acc high, Acc low) {
    for (int l = 0; l < kLanes; ++l) total.lane[l] += high.lane[l] * 256 + low.lane[l];
    return total;
  }
  static F to_float(I a) {
    F r;
    for (int l = 0; l < kLanes; ++l) r.lane[l] = static_cast<float>(a.lane[l]);
    return r;
  }
  // Nearest integer; any value for NaN and for what does not fit.
  static I round(F a) {
    I r;
    for (int l = 0; l < kLanes; ++l) {
      const float v = a.lane[l];
      r.lane[l] = v > -1e9f && v < 1e9f ? static_cast<std::int32_t>(std::nearbyint(v)) : 0;
    }
    return r;
  }
  // Towards zero; the values must fit.
  static I truncate(F a) {
    I r;
    for (int l = 0; l < kLanes; ++l) r.lane[l] = static_cast<std::int32_t>(a.lane[l]);
    return r;
  }
  static I load(const std::int32_t* p) {
    I r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static void store(std::int32_t* p, I a) { std::memcpy(p, a.lane, sizeof a.lane); }
  static I load_bytes(const std::uint8_t* p) {
    I r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static void store_bytes(std::uint8_t* p, I a) { std::memcpy(p, a.lane, sizeof a.lane); }
  // Splits w = high * 256 + low, low in -128 .. 127, and writes kLanes bytes of each in the order
  // of the tokens.
  static void split_bytes(I w, std::int8_t* high, std::int8_t* low) {
    for (int l = 0; l < kLanes; ++l) {
      const std::int32_t h = (w.lane[l] + 128) >> 8;
      high[token_of_lane(l)] = static_cast<std::int8_t>(h);
      low[token_of_lane(l)] = static_cast<std::int8_t>(w.lane[l] - h * 256);
    }
  }

  // kLanes tokens x 16 bytes -> x[i]: lane l holds bytes 4i .. 4i+3 of token token_of_lane(l).
  static void transpose4(const std::uint8_t* rows, I (&x)[4]) {
    for (int l = 0; l < kLanes; ++l) {
      for (int i = 0; i < 4; ++i)
        std::memcpy(&x[i].lane[l], rows + token_of_lane(l) * 16 + i * 4, 4);
    }
  }
  // The same for rows that are `stride` bytes apart.
  static void transpose4(const std::uint8_t* rows, int stride, I (&x)[4]) {
    for (int l = 0; l < kLanes; ++l) {
      for (int i = 0; i < 4; ++i)
        std::memcpy(&x[i].lane[l], rows + token_of_lane(l) * stride + i * 4, 4);
    }
  }
  // Bits 15..0, or 31..16, of each lane as an FP16 or BF16 number.
  static F low_half(I a, DType dtype) {
    F r;
    for (int l = 0; l < kLanes; ++l) {
      const auto bits = static_cast<std::uint16_t>(a.lane[l] & 0xffff);
      r.lane[l] = dtype == DType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
    }
    return r;
  }
  static F high_half(I a, DType dtype) {
    for (std::int32_t& v : a.lane)
      v = static_cast<std::int32_t>(static_cast<std::uint32_t>(v) >> 16);
    return low_half(a, dtype);
  }
  // 4 tokens x 16 bytes -> y[part]: byte t of lane l is byte channel_of_lane(part, l) of token t.
  static void interleave4(const std::uint8_t* rows, I (&y)[16 / kLanes]) {
    for (int l = 0; l < kLanes; ++l) {
      std::uint8_t bytes[4];
      for (int t = 0; t < 4; ++t) bytes[t] = rows[t * 16 + l];
      std::memcpy(&y[0].lane[l], bytes, 4);
    }
  }
  static F as_float(I a) { return std::bit_cast<F>(a); }
  // Lane l: the sum over the lanes of a[l].
  static F sum_each(const F (&a)[kLanes]) {
    F r;
    for (int l = 0; l < kLanes; ++l) r.lane[l] = sum(a[l]);
    return r;
  }
};

}  // namespace foscar::cpu
