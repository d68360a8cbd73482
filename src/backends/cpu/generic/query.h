// Preparation of the query rows of a piece: from q to 16-bit fixed point per group of channels,
//
//     q_c * sm_scale * log2(e) ~= q_scale[g] * w_c,    w_c = high_c * 256 + low_c,  |w_c| <= 32512.
//
// For 16-bit queries the factor is a power of two: BF16 values down to 1/64 of the group's largest,
// FP16 down to 1/8, are exact. FP32 queries use all levels. Both parts of the K fold (codes and
// offsets) use the rounded values: they largely cancel, and a rounding error in one of them alone
// would be amplified.
#pragma once

#include <bit>
#include <cstring>
#include <limits>

#include "backends/cpu/scratch.h"
#include "core/visible.h"
#include "dispatch/backend.h"

namespace foscar::cpu {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kQueryLevels = 32512.0f;  // 127 * 256: keeps the high byte below 128

// Reads n consecutive elements as FP32; n is a multiple of 16.
template <typename Isa>
void load_floats(const void* data, DType dtype, int n, float* out) {
  for (int c = 0; c < n; c += Isa::kLanes) {
    if (dtype == DType::kF32) {
      Isa::store(out + c, Isa::load(static_cast<const float*>(data) + c));
    } else {
      Isa::store(out + c, Isa::load_wide(static_cast<const std::uint16_t*>(data) + c, dtype));
    }
  }
}

// The largest power of two f, at most 2^120, with f * magnitude <= levels. The limit keeps f and 1
// / f normal numbers for groups that are zero or nearly so.
inline float fixed_point_factor(float levels, float magnitude, bool power_of_two) {
  const float ratio = levels / magnitude;
  if (!(ratio < 0x1p120f)) return 0x1p120f;  // also NaN and infinity
  if (!power_of_two) return ratio;
  // Dropping the mantissa bits rounds down to a power of two.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(ratio) & 0x7f800000u);
}

template <typename Isa>
void quantize_query(const float* q, DType dtype, int head_dim, int group_size, float logit_scale,
                    RowState& row) {
  using F = typename Isa::F;
  for (int g = 0; g * group_size < head_dim; ++g) {
    const float* x = q + g * group_size;
    F largest = Isa::set(0.0f);
    F poison = Isa::set(0.0f);  // NaN if any value is NaN or infinite
    for (int c = 0; c < group_size; c += Isa::kLanes) {
      const F value = Isa::load(x + c);
      largest = Isa::max(Isa::max(value, Isa::sub(Isa::set(0.0f), value)), largest);
      poison = Isa::fma(value, Isa::set(0.0f), poison);
    }
    const float magnitude = Isa::max_lane(largest);
    const float inverse = fixed_point_factor(kQueryLevels, magnitude, dtype != DType::kF32);
    int sum = 0;
    for (int c = 0; c < group_size; c += Isa::kLanes) {
      alignas(64) std::int32_t w[Isa::kLanes];
      Isa::store(w, Isa::round(Isa::mul(Isa::load(x + c), Isa::set(inverse))));
      for (int l = 0; l < Isa::kLanes; ++l) {
        const std::int32_t high = (w[l] + 128) >> 8;
        row.q_bytes[0][g * group_size + c + l] = static_cast<std::int8_t>(high);
        row.q_bytes[1][g * group_size + c + l] = static_cast<std::int8_t>(w[l] - high * 256);
        sum += w[l];
      }
    }
    row.q_scale[g] = logit_scale / inverse + Isa::sum(poison);
    row.q_sum[g] = row.q_scale[g] * static_cast<float>(sum);
  }
}

// Fills `rows` for a piece: query and empty states. `group_size` 0 keeps the query as FP32, scaled
// (dense decode).
template <typename Isa>
void prepare_rows(const DecodeArgs& args, const WorkItem& item, int kv_len, int group_size,
                  RowState* rows) {
  const int gqa = args.shape.gqa_group_size();
  const int head_dim = args.shape.head_dim;
  const float logit_scale = args.sm_scale * kLog2E;
  for (int t = 0; t < args.shape.qo_len; ++t) {
    for (int h = 0; h < gqa; ++h) {
      RowState& row = rows[t * gqa + h];
      const std::int64_t element =
          item.request_idx * args.q.batch_stride + t * args.q.token_stride +
          (static_cast<std::int64_t>(item.kv_head_idx) * gqa + h) * args.q.head_stride;
      const auto* q =
          static_cast<const std::uint8_t*>(args.q.data) + element * dtype_bytes(args.q.dtype);
      load_floats<Isa>(q, args.q.dtype, head_dim, row.q);
      if (args.q.dtype == DType::kBF16)
        std::memcpy(row.q_bf16, q, sizeof(std::uint16_t) * static_cast<std::size_t>(head_dim));
      if (group_size > 0) {
        quantize_query<Isa>(row.q, args.q.dtype, head_dim, group_size, logit_scale, row);
      } else {
        for (int c = 0; c < head_dim; ++c) row.q[c] *= logit_scale;
      }
      for (int c = 0; c < head_dim; ++c) row.o[c] = 0.0f;
      for (float& sum : row.offset_sum) sum = 0.0f;
      row.row_max = -std::numeric_limits<float>::infinity();
      row.row_sum = 0.0f;
      const int qo_len = args.shape.qo_len;
      row.num_visible = end_visible(kv_len, qo_len, t, args.causal);
      row.first_visible = first_visible(kv_len, qo_len, t, args.modifiers.window_left);
      row.new_begin = kv_len - qo_len;
      row.mask_row = args.modifiers.mask == nullptr
                         ? nullptr
                         : args.modifiers.mask_row(item.request_idx, t, qo_len);
    }
  }
}

}  // namespace foscar::cpu
