// AVX-512 with VNNI: 16 lanes. Only AVX-512 F, BW, VL, DQ and VNNI are used, so Cascade Lake, Ice
// Lake and Zen 4 all take this path. Meaning of the operations: scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "foscar/dtype.h"

namespace foscar::cpu {

struct Avx512 {
  static constexpr int kLanes = 16;
  using F = __m512;
  using I = __m512i;
  using Acc = __m512i;

  // Shuffles run beside the dots and cost nothing there; 64-byte stores do not.
  static constexpr bool kStoreQuads = false;
  static constexpr bool kTiles = false;
  struct TileScope {
    ~TileScope() {}
  };
  static constexpr int kValueVectors = 2;
  // 32-bit accumulators: a row of 256 channels, 15 * 128 each, is far from overflow.
  static constexpr int max_dots(int /*bits*/) { return 1 << 20; }
  // Four loads of 64 bytes hold tokens 4k .. 4k+3 (k = 0..3), one per 128-bit quarter i; unpacking
  // puts token 4k + i into lane 4i + k.
  static constexpr int token_of_lane(int lane) { return lane / 4 + lane % 4 * 4; }
  static constexpr int channel_of_lane(int /*part*/, int lane) { return lane; }

  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static constexpr bool kBf16Dot = false;
  static F load_wide(const std::uint16_t* p, DType dtype) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (dtype == DType::kF16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F reciprocal(F a) { return _mm512_rcp14_ps(a); }
  static F fused(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F select_tokens(int limit, F a, F b) {
    const __m512i token = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(token, _mm512_set1_epi32(limit)), b, a);
  }
  static F select_lanes(int limit, F a, F b) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(limit)), b, a);
  }
  static F keep_between(F key, float low, float high, F x) {
    const __mmask16 above = _mm512_cmp_ps_mask(key, _mm512_set1_ps(low), _CMP_GT_OQ);
    return _mm512_maskz_mov_ps(
        _mm512_mask_cmp_ps_mask(above, key, _mm512_set1_ps(high), _CMP_LE_OQ), x);
  }
  static float sum(F a) { return _mm512_reduce_add_ps(a); }
  static float max_lane(F a) { return _mm512_reduce_max_ps(a); }
  static F exp2(F a) {
    const F whole = _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F rest = _mm512_sub_ps(a, whole);  // -0.5 .. 0.5
    // Minimax polynomial of 2^rest, relative error 8e-8.
    F y = _mm512_set1_ps(0x1.5bc922p-10f);
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(0x1.3d0ba4p-7f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(0x1.c6b782p-5f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(0x1.ebf91ap-3f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(0x1.62e428p-1f));
    y = _mm512_fmadd_ps(y, rest, _mm512_set1_ps(0x1.000002p+0f));
    // -inf - (-inf) above is NaN, so -inf and all that underflows is selected away; NaN itself
    // fails the comparison.
    const __mmask16 keep = _mm512_cmp_ps_mask(a, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, y, whole);
  }

  static I zero() { return _mm512_setzero_si512(); }
  using Shift = __m512i;
  static Shift shift_by(int bits) { return _mm512_set1_epi32(bits); }
  static I codes(I x, Shift shift, int mask) {
    // The form with one count per lane: the one with a single count costs two operations on Zen 4.
    return _mm512_and_si512(_mm512_srlv_epi32(x, shift), _mm512_set1_epi8(static_cast<char>(mask)));
  }
  template <int kShift>
  static I codes(I x, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(x, kShift),
                            _mm512_set1_epi8(static_cast<char>(mask)));
  }
  // As assembly: GCC 12 turns the intrinsic into a separate broadcast and a register copy per
  // product, three times the instructions.
  static void dot(Acc& acc, I code_bytes, const std::int8_t* four) {
    struct Four {
      std::int8_t bytes[4];
    };
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(acc)
            : "v"(code_bytes), "m"(*reinterpret_cast<const Four*>(four)));
  }
  static I collect(I total, Acc high, Acc low) {
    return _mm512_add_epi32(total, _mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
  }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I round(F a) { return _mm512_cvtps_epi32(a); }
  static I truncate(F a) { return _mm512_cvttps_epi32(a); }
  static I load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static void store(std::int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static I load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_bytes(std::uint8_t* p, I a) { _mm512_storeu_si512(p, a); }
  static void split_bytes(I w, std::int8_t* high, std::int8_t* low) {
    // The order of the lanes is a 4x4 transposition, its own inverse.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i natural = _mm512_permutexvar_epi32(order, w);
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(natural, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(natural));
  }

  static void transpose4(const std::uint8_t* rows, I (&x)[4]) {
    unpack4(_mm512_loadu_si512(rows), _mm512_loadu_si512(rows + 64), _mm512_loadu_si512(rows + 128),
            _mm512_loadu_si512(rows + 192), x);
  }
  static void unpack4(I a, I b, I c, I d, I (&x)[4]) {
    const I ab_low = _mm512_unpacklo_epi32(a, b);
    const I ab_high = _mm512_unpackhi_epi32(a, b);
    const I cd_low = _mm512_unpacklo_epi32(c, d);
    const I cd_high = _mm512_unpackhi_epi32(c, d);
    x[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    x[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    x[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    x[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
  // The same for rows that are `stride` bytes apart.
  static void transpose4(const std::uint8_t* rows, int stride, I (&x)[4]) {
    I quads[4];
    for (int k = 0; k < 4; ++k) {
      const auto row = [&](int i) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (4 * k + i) * stride));
      };
      const __m256i lower = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
      const __m256i upper = _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1);
      quads[k] = _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
    }
    unpack4(quads[0], quads[1], quads[2], quads[3], x);
  }
  // Bits 15..0 of each lane, an FP16 or BF16 number.
  static F low_half(I a, DType dtype) {
    if (dtype == DType::kF16) return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
    return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
  }
  static F high_half(I a, DType dtype) { return low_half(_mm512_srli_epi32(a, 16), dtype); }
  static void interleave4(const std::uint8_t* rows, I (&y)[1]) {
    // Quarter q of the register takes 32-bit word q of each of the four tokens, then a 4x4
    // transposition of bytes.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    y[0] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(order, _mm512_loadu_si512(rows)), bytes);
  }
  static F as_float(I a) { return _mm512_castsi512_ps(a); }
  static F sum_each(const F (&a)[kLanes]) {
    // Four rounds of adding pairs; the unpack order below leaves lane l with the sum of a[l].
    F pair[8], quad[4];
    for (int i = 0; i < 4; ++i) {
      for (int h = 0; h < 2; ++h) {
        const F u = a[i * 4 + h], v = a[i * 4 + h + 2];
        pair[i * 2 + h] = _mm512_add_ps(_mm512_unpacklo_ps(u, v), _mm512_unpackhi_ps(u, v));
      }
      const F u = pair[i * 2], v = pair[i * 2 + 1];
      quad[i] = _mm512_add_ps(_mm512_unpacklo_ps(u, v), _mm512_unpackhi_ps(u, v));
    }
    // quad[i], quarter q: partial sums of a[4i .. 4i+3]; add over q.
    const F s0 = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88),
                               _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
    const F s1 = _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x88),
                               _mm512_shuffle_f32x4(quad[2], quad[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(s0, s1, 0x88), _mm512_shuffle_f32x4(s0, s1, 0xdd));
  }
};

}  // namespace foscar::cpu
