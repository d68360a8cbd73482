// AVX2 with FMA and F16C: 8 lanes. Byte products go through 16-bit accumulators. Meaning of the
// operations: scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "foscar/dtype.h"

namespace foscar::cpu {

struct Avx2 {
  static constexpr int kLanes = 8;
  using F = __m256;
  using I = __m256i;
  using Acc = __m256i;  // 16 sums of 16 bits

  static constexpr bool kStoreQuads = true;
  static constexpr bool kTiles = false;
  struct TileScope {
    ~TileScope() {}
  };
  static constexpr int kValueVectors = 1;
  // One dot adds at most 2 * max_code * 128 to a 16-bit sum: 768 at 2 bits, 3840 at 4.
  static constexpr int max_dots(int bits) { return bits == 2 ? 40 : 8; }
  static constexpr int token_of_lane(int lane) { return lane / 4 + lane % 4 * 2; }
  static constexpr int channel_of_lane(int part, int lane) {
    return part * 4 + lane % 4 + lane / 4 * 8;
  }

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static constexpr bool kBf16Dot = false;
  static F load_wide(const std::uint16_t* p, DType dtype) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if (dtype == DType::kF16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F reciprocal(F a) { return _mm256_rcp_ps(a); }
  static F fused(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F select_tokens(int limit, F a, F b) {
    const __m256i token = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), token);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(below));
  }
  static F select_lanes(int limit, F a, F b) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(
        b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(limit), lane)));
  }
  static F keep_between(F key, float low, float high, F x) {
    const F above = _mm256_cmp_ps(key, _mm256_set1_ps(low), _CMP_GT_OQ);
    return _mm256_and_ps(_mm256_and_ps(above, _mm256_cmp_ps(key, _mm256_set1_ps(high), _CMP_LE_OQ)),
                         x);
  }
  static float sum(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_lane(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static F exp2(F a) {
    const F whole = _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F rest = _mm256_sub_ps(a, whole);  // -0.5 .. 0.5
    // Minimax polynomial of 2^rest, relative error 8e-8.
    F y = _mm256_set1_ps(0x1.5bc922p-10f);
    y = _mm256_fmadd_ps(y, rest, _mm256_set1_ps(0x1.3d0ba4p-7f));
    y = _mm256_fmadd_ps(y, rest, _mm256_set1_ps(0x1.c6b782p-5f));
    y = _mm256_fmadd_ps(y, rest, _mm256_set1_ps(0x1.ebf91ap-3f));
    y = _mm256_fmadd_ps(y, rest, _mm256_set1_ps(0x1.62e428p-1f));
    y = _mm256_fmadd_ps(y, rest, _mm256_set1_ps(0x1.000002p+0f));
    // Times 2^whole through the exponent field; lanes below -126 are selected away, NaN lanes
    // multiply NaN.
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    const F keep = _mm256_cmp_ps(a, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm256_and_ps(keep, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
  }

  static I zero() { return _mm256_setzero_si256(); }
  using Shift = __m256i;
  static Shift shift_by(int bits) { return _mm256_set1_epi32(bits); }
  static I codes(I x, Shift shift, int mask) {
    return _mm256_and_si256(_mm256_srlv_epi32(x, shift), _mm256_set1_epi8(static_cast<char>(mask)));
  }
  template <int kShift>
  static I codes(I x, int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(x, kShift),
                            _mm256_set1_epi8(static_cast<char>(mask)));
  }
  // As assembly: GCC 12 reorders the sums of 16-bit products and spills half of them.
  static void dot(Acc& acc, I code_bytes, const std::int8_t* four) {
    struct Four {
      std::int8_t bytes[4];
    };
    I products;
    __asm__(
        "vpbroadcastd %3, %1\n\t"
        "vpmaddubsw %1, %2, %1\n\t"
        "vpaddw %1, %0, %0"
        : "+x"(acc), "=&x"(products)
        : "x"(code_bytes), "m"(*reinterpret_cast<const Four*>(four)));
  }
  static I collect(I total, Acc high, Acc low) {
    const I pairs = _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                                     _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    return _mm256_add_epi32(total, pairs);
  }
  static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static I round(F a) { return _mm256_cvtps_epi32(a); }
  static I truncate(F a) { return _mm256_cvttps_epi32(a); }
  static I load(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store(std::int32_t* p, I a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  static I load_bytes(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store_bytes(std::uint8_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
  }
  static void split_bytes(I w, std::int8_t* high, std::int8_t* low) {
    // Lane order 0 2 4 6 | 1 3 5 7 back to 0 .. 7.
    const __m256i natural =
        _mm256_permutevar8x32_epi32(w, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // Bytes 0 and 1 of w + 128 are low + 128 and high.
    const __m256i shifted = _mm256_add_epi32(natural, _mm256_set1_epi32(128));
    const __m256i gather =
        _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1,  //
                         0, 4, 8, 12, 1, 5, 9, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i bytes = _mm256_shuffle_epi8(shifted, gather);
    const __m128i both =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    const __m128i lows = _mm_xor_si128(both, _mm_set1_epi8(static_cast<char>(0x80)));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(low), lows);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_unpackhi_epi64(both, both));
  }

  static void transpose4(const std::uint8_t* rows, I (&x)[4]) {
    const auto at = [rows](int i) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows) + i);
    };
    unpack4(at(0), at(1), at(2), at(3), x);
  }
  static void unpack4(I a, I b, I c, I d, I (&x)[4]) {
    const I ab_low = _mm256_unpacklo_epi32(a, b);
    const I ab_high = _mm256_unpackhi_epi32(a, b);
    const I cd_low = _mm256_unpacklo_epi32(c, d);
    const I cd_high = _mm256_unpackhi_epi32(c, d);
    x[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
    x[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
    x[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
    x[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
  }
  // The same for rows that are `stride` bytes apart.
  static void transpose4(const std::uint8_t* rows, int stride, I (&x)[4]) {
    const auto pair = [rows, stride](int k) {
      const auto row = [&](int i) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (2 * k + i) * stride));
      };
      return _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
    };
    unpack4(pair(0), pair(1), pair(2), pair(3), x);
  }
  // Bits 15..0 of each lane, an FP16 or BF16 number.
  static F low_half(I a, DType dtype) {
    if (dtype != DType::kF16) return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    const I words =
        _mm256_packus_epi32(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
  }
  static F high_half(I a, DType dtype) { return low_half(_mm256_srli_epi32(a, 16), dtype); }
  static void interleave4(const std::uint8_t* rows, I (&y)[2]) {
    // 128-bit halves: bytes 0..7 | 8..15 of two tokens, interleaved; then pairs of pairs.
    const __m256i zip = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,  //
                                         0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const auto two = [rows, zip](int i) {
      const __m256i pair = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows) + i);
      return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(pair, 0xd8), zip);
    };
    const __m256i first = two(0), second = two(1);
    y[0] = _mm256_unpacklo_epi16(first, second);
    y[1] = _mm256_unpackhi_epi16(first, second);
  }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }
  static F sum_each(const F (&a)[kLanes]) {
    const F lower = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const F upper = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(lower, upper, 0x20),
                         _mm256_permute2f128_ps(lower, upper, 0x31));
  }
};

}  // namespace foscar::cpu
