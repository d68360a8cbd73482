// Dense decode: the same pieces over BF16/FP16 pages, FP32 accumulation. The honest baseline of the
// low-bit path, and the kernel for high-precision windows: K and V rows are read once for all query
// rows of a KV head, four rows at a time.
//
// Scores: lanes are channels; 16 (or 8) accumulators, row x token, are summed over their lanes
// together. Where the processor multiplies BF16 pairs and both q and K are BF16, those products are
// used: exact, twice the rate.
#pragma once

#include <algorithm>

#include "backends/cpu/generic/decode.h"

namespace foscar::cpu {

inline constexpr int kDenseBlockTokens = 64;

struct DenseBlock {
  int begin = 0;
  int num_tokens = 0;
  const std::uint16_t* k[kDenseBlockTokens];  // row of each token
  const std::uint16_t* v[kDenseBlockTokens];
};

inline void gather_dense_block(const DenseDecodeArgs& args, const WorkItem& item, int begin,
                               DenseBlock& block) {
  const PageTableView& table = args.decode.table;
  const PageSlots slots(table.page_size);
  const std::int32_t* pages = table.row(item.request_idx);
  block.begin = begin;
  block.num_tokens = std::min(item.kv_end - begin, kDenseBlockTokens);
  const auto* k =
      static_cast<const std::uint16_t*>(args.k.data) + item.kv_head_idx * args.k.head_stride;
  const auto* v =
      static_cast<const std::uint16_t*>(args.v.data) + item.kv_head_idx * args.v.head_stride;
  for (int t = 0; t < block.num_tokens; ++t) {
    const std::int64_t page = pages[slots.page(begin + t)];
    const std::int64_t slot = slots.slot(begin + t);
    block.k[t] = k + page * args.k.page_stride + slot * args.k.token_stride;
    block.v[t] = v + page * args.v.page_stride + slot * args.v.token_stride;
  }
}

[[gnu::always_inline]] inline void prefetch_row(const std::uint16_t* row, int head_dim) {
  for (int c = 0; c < head_dim; c += 32) __builtin_prefetch(row + c, 0, 2);
}

// acc[row][token] += q . k over the channels: a template over how, so that the accumulators stay in
// registers.
template <typename Isa, int kRows, int kTokens, typename Step>
[[gnu::always_inline]] inline void dense_dots(int head_dim, int channels_per_step,
                                              typename Isa::F (&sums)[Isa::kLanes], Step&& step) {
  using F = typename Isa::F;
  F acc[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) acc[r][t] = Isa::set(0.0f);
  }
  for (int c = 0; c < head_dim; c += channels_per_step) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) step(c, t, acc);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sums[r * kTokens + t] = acc[r][t];
  }
  for (int i = kRows * kTokens; i < Isa::kLanes; ++i) sums[i] = Isa::set(0.0f);
}

// Logits of tokens first .. first + kTokens-1 into scratch.p, natural order.
template <typename Isa, int kRows>
void score_dense(const DenseDecodeArgs& args, const DenseBlock& block, int first,
                 const RowState* rows, DecodeScratch& scratch) {
  using F = typename Isa::F;
  constexpr int kTokens = Isa::kLanes / kTileRows;
  const int head_dim = args.decode.shape.head_dim;
  const std::uint16_t* k[kTokens];
  for (int t = 0; t < kTokens; ++t) k[t] = block.k[std::min(first + t, block.num_tokens - 1)];
  F sums[Isa::kLanes];  // [row][token]
  float scale = 1.0f;
  const auto with_bf16 = [&]() __attribute__((always_inline)) {
    if constexpr (Isa::kBf16Dot) {
      if (args.k.dtype != DType::kBF16 || args.decode.q.dtype != DType::kBF16) return false;
      scale = args.decode.sm_scale * kLog2E;
      dense_dots<Isa, kRows, kTokens>(
          head_dim, 2 * Isa::kLanes,
          sums, [&](int c, int t, F(&acc)[kRows][kTokens]) __attribute__((always_inline)) {
            const typename Isa::I value =
                Isa::load_bytes(reinterpret_cast<const std::uint8_t*>(k[t] + c));
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) Isa::dot_bf16(acc[r][t], rows[r].q_bf16 + c, value);
          });
      return true;
    }
    return false;
  };
  if (!with_bf16()) {
    dense_dots<Isa, kRows, kTokens>(
        head_dim, Isa::kLanes,
        sums, [&](int c, int t, F(&acc)[kRows][kTokens]) __attribute__((always_inline)) {
          const F value = Isa::load_wide(k[t] + c, args.k.dtype);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
            acc[r][t] = Isa::fma(Isa::load(rows[r].q + c), value, acc[r][t]);
        });
  }
  alignas(64) float logits[Isa::kLanes];
  Isa::store(logits, Isa::mul(Isa::sum_each(sums), Isa::set(scale)));
  for (int r = 0; r < kRows; ++r)
    std::memcpy(scratch.p[r] + first, logits + r * kTokens, sizeof(float) * kTokens);
}

// o += p * v for tokens begin .. end-1. `next`: V rows to prefetch meanwhile, or null.
template <typename Isa, int kRows>
void add_dense_values(const DenseBlock& block, const DenseBlock* next, DType dtype, int head_dim,
                      int begin, int end, const float (*p)[kMaxBlockTokens], RowState* rows) {
  using F = typename Isa::F;
  constexpr int kVectors = Isa::kLanes / 4;
  for (int c = 0; c < head_dim; c += kVectors * Isa::kLanes) {
    F acc[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < kVectors; ++n) acc[r][n] = Isa::load(rows[r].o + c + n * Isa::kLanes);
    }
    for (int t = begin; t < end; ++t) {
      if (c == 0 && next != nullptr && t < next->num_tokens) prefetch_row(next->v[t], head_dim);
      F value[kVectors];
      for (int n = 0; n < kVectors; ++n)
        value[n] = Isa::load_wide(block.v[t] + c + n * Isa::kLanes, dtype);
      for (int r = 0; r < kRows; ++r) {
        const F weight = Isa::set(p[r][t]);
        for (int n = 0; n < kVectors; ++n) acc[r][n] = Isa::fma(weight, value[n], acc[r][n]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < kVectors; ++n) Isa::store(rows[r].o + c + n * Isa::kLanes, acc[r][n]);
    }
  }
}

// `next`: rows to prefetch while this block is scored; null if another row tile has done so.
template <typename Isa, int kRows>
void attend_dense_tile(const DenseDecodeArgs& args, const DenseBlock& block, const DenseBlock* next,
                       DecodeScratch& scratch, RowState* rows) {
  const int head_dim = args.decode.shape.head_dim;
  constexpr int kTokens = Isa::kLanes / kTileRows;
  for (int t = 0; t < block.num_tokens; t += kTokens) {
    if (next != nullptr) {
      for (int i = t; i < t + kTokens && i < next->num_tokens; ++i) {
        prefetch_row(next->k[i], head_dim);
      }
    }
    score_dense<Isa, kRows>(args, block, t, rows, scratch);
  }
  if (const float cap = args.decode.modifiers.logits_soft_cap; cap > 0.0f) {
    for (int r = 0; r < kRows; ++r) cap_logits<Isa>(scratch.p[r], kDenseBlockTokens, cap * kLog2E);
  }
  int limit[kRows];
  int common = block.num_tokens;
  bool any_hides = false;
  for (int r = 0; r < kRows; ++r) {
    limit[r] = std::clamp(rows[r].num_visible - block.begin, 0, block.num_tokens);
    const bool hides = may_hide(rows[r], block.begin, block.begin + limit[r]);
    if (hides && hide_tokens<Isa, true>(rows[r], block.begin, kDenseBlockTokens, limit[r],
                                        scratch.p[r], scratch.keep[r]) > 0) {
      softmax_block<Isa, false, true, true>(scratch.p[r], kDenseBlockTokens, limit[r], head_dim,
                                            {nullptr, nullptr}, scratch.keep[r], rows[r]);
    } else {
      if (hides) limit[r] = 0;
      softmax_block<Isa, false, true>(scratch.p[r], kDenseBlockTokens, limit[r], head_dim,
                                      {nullptr, nullptr}, nullptr, rows[r]);
    }
    common = std::min(common, limit[r]);
    any_hides = any_hides || hides;
  }
  // Tokens that only some rows see must not meet the others, not even with weight 0: they may hold
  // NaN.
  if (any_hides) {
    for (int t = 0; t < block.num_tokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        if (t >= limit[r] || !sees_token(rows[r], block.begin + t)) continue;
        add_dense_values<Isa, 1>(block, nullptr, args.v.dtype, head_dim, t, t + 1, scratch.p + r,
                                 rows + r);
      }
    }
    return;
  }
  add_dense_values<Isa, kRows>(block, next, args.v.dtype, head_dim, 0, common, scratch.p, rows);
  for (int r = 0; r < kRows; ++r) {
    if (common < limit[r]) {
      add_dense_values<Isa, 1>(block, nullptr, args.v.dtype, head_dim, common, limit[r],
                               scratch.p + r, rows + r);
    }
  }
}

template <typename Isa>
void dense_piece(const DenseDecodeArgs& args, const WorkItem& item, const WorkItem* next,
                 int kv_len, DecodeScratch& scratch, const PartialState& out) {
  const int head_dim = args.decode.shape.head_dim;
  const int num_rows = args.decode.shape.qo_len * args.decode.shape.gqa_group_size();
  RowState* rows = scratch.rows.data();
  prepare_rows<Isa>(args.decode, item, kv_len, 0, rows);
  DenseBlock blocks[2];
  gather_dense_block(args, item, item.kv_begin, blocks[0]);
  int current = 0;
  for (int begin = item.kv_begin; begin < item.kv_end; begin += kDenseBlockTokens) {
    DenseBlock& ahead = blocks[1 - current];
    ahead.num_tokens = 0;
    if (begin + kDenseBlockTokens < item.kv_end) {
      gather_dense_block(args, item, begin + kDenseBlockTokens, ahead);
    } else if (next != nullptr) {
      gather_dense_block(args, *next, next->kv_begin, ahead);
    }
    for_each_row_tile(num_rows, [&]<int kRows>(int r) {
      attend_dense_tile<Isa, kRows>(args, blocks[current], r == 0 ? &ahead : nullptr, scratch,
                                    rows + r);
    });
    current = 1 - current;
  }
  for (int r = 0; r < num_rows; ++r) {
    std::memcpy(out.o + static_cast<std::int64_t>(r) * head_dim, rows[r].o,
                sizeof(float) * static_cast<std::size_t>(head_dim));
    out.row_max[r] = rows[r].row_max;
    out.row_sum[r] = rows[r].row_sum;
  }
}

}  // namespace foscar::cpu
