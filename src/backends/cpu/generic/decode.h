// Decode of one piece: for each block of tokens and each tile of up to four query rows: scores,
// softmax, values. The codes and parameters of a block are read from memory once, for all query
// rows of the KV head.
#pragma once

#include "backends/cpu/generic/modify.h"
#include "backends/cpu/generic/query.h"
#include "backends/cpu/generic/scores.h"
#include "backends/cpu/generic/softmax.h"
#include "backends/cpu/generic/values.h"

namespace foscar::cpu {

template <typename Isa, int kBits, int kRows>
void softmax_and_values(const PageLayout& layout, const TokenBlock& block, DecodeScratch& scratch,
                        RowState* rows) {
  const int num_tokens = block.num_tiles * kTileTokens;
  const bool folded =
      layout.v.num_groups == 1 && scratch.v_range[0].one_pass && scratch.v_range[0].largest > 0.0f;
  const FoldInputs fold{scratch.v_scale[0], scratch.v_offset[0]};
  bool hides[kRows];  // tokens that this row does not see lie among those that it does
  for (int r = 0; r < kRows; ++r) {
    const int visible = rows[r].num_visible - block.begin;
    int limit = visible < block.num_tokens ? visible : block.num_tokens;
    hides[r] = may_hide(rows[r], block.begin, block.begin + limit);
    if (hides[r]) {
      const int seen = hide_tokens<Isa, false>(rows[r], block.begin, num_tokens, limit,
                                               scratch.p[r], scratch.keep[r]);
      if (seen == 0) limit = 0;
    }
    const auto softmax = [&]<bool kFold, bool kKeep>() {
      softmax_block<Isa, kFold, false, kKeep>(scratch.p[r], num_tokens, limit, layout.head_dim,
                                              fold, scratch.keep[r], rows[r]);
    };
    const bool keep = hides[r] && limit > 0;
    if (folded) {
      keep ? softmax.template operator()<true, true>() : softmax.template operator()<true, false>();
    } else {
      keep ? softmax.template operator()<false, true>()
           : softmax.template operator()<false, false>();
    }
  }
  if (folded) {
    add_folded_values<Isa, kBits, kRows>(layout, block, scratch, rows);
  } else {
    add_values<Isa, kBits, kRows>(layout, block, hides, scratch, rows);
  }
}

template <typename Isa, int kRows>
void attend_tile(const DecodeArgs& args, const TokenBlock& block, DecodeScratch& scratch,
                 RowState* rows, const Prefetcher* prefetch) {
  const PageLayout& layout = args.layout;
  if (layout.k.bits == 2) {
    score_block<Isa, 2, kRows>(layout, block, rows, scratch, prefetch);
  } else {
    score_block<Isa, 4, kRows>(layout, block, rows, scratch, prefetch);
  }
  if (prefetch != nullptr) {
    for (int g = 0; g < layout.v.num_groups; ++g) {
      scratch.v_range[g] = survey_scales<Isa>(scratch.v_scale[g], block.num_tiles * kTileTokens);
    }
  }
  if (const float cap = args.modifiers.logits_soft_cap; cap > 0.0f) {
    for (int r = 0; r < kRows; ++r)
      cap_logits<Isa>(scratch.p[r], block.num_tiles * kTileTokens, cap * kLog2E);
  }
  if (layout.v.bits == 2) {
    softmax_and_values<Isa, 2, kRows>(layout, block, scratch, rows);
  } else {
    softmax_and_values<Isa, 4, kRows>(layout, block, scratch, rows);
  }
}

// Writes the rows' states, the accumulators' order of channels undone and the offset part added.
template <typename Isa>
void store_partial(const SideLayout& v, int head_dim, const RowState* rows, int num_rows,
                   const PartialState& out) {
  for (int r = 0; r < num_rows; ++r) {
    float* o = out.o + static_cast<std::int64_t>(r) * head_dim;
    for (int c = 0; c < head_dim; c += 16) {
      const auto offset = Isa::set(rows[r].offset_sum[c / v.group_size]);
      for (int n = 0; n < 16 / Isa::kLanes; ++n) {
        const auto value = Isa::add(Isa::load(rows[r].o + c + n * Isa::kLanes), offset);
        alignas(64) float lanes[Isa::kLanes];
        Isa::store(lanes, value);
        for (int l = 0; l < Isa::kLanes; ++l) o[c + Isa::channel_of_lane(n, l)] = lanes[l];
      }
    }
    out.row_max[r] = rows[r].row_max;
    out.row_sum[r] = rows[r].row_sum;
  }
}

// Calls f with std::integral_constant<int, n> for n = min(kTileRows, rows left), until all rows are
// done.
template <typename F>
void for_each_row_tile(int num_rows, F&& f) {
  int r = 0;
  for (; r + 4 <= num_rows; r += 4) f.template operator()<4>(r);
  switch (num_rows - r) {
    case 3: f.template operator()<3>(r); break;
    case 2: f.template operator()<2>(r); break;
    case 1: f.template operator()<1>(r); break;
    default: break;
  }
}

template <typename Isa>
void decode_piece(const DecodeArgs& args, const WorkItem& item, const WorkItem* next, int kv_len,
                  DecodeScratch& scratch, const PartialState& out) {
  const PageLayout& layout = args.layout;
  const int num_rows = args.shape.qo_len * args.shape.gqa_group_size();
  RowState* rows = scratch.rows.data();
  prepare_rows<Isa>(args, item, kv_len, layout.k.group_size, rows);
  const int block_size = block_tokens(layout);
  const typename Isa::TileScope tile_scope;
  const Prefetcher prefetch(args, item, next, block_size);
  for (int begin = item.kv_begin; begin < item.kv_end; begin += block_size) {
    const int end = item.kv_end - begin > block_size ? begin + block_size : item.kv_end;
    const TokenBlock block = gather_block(args, item, begin, end, scratch);
    for_each_row_tile(num_rows, [&]<int kRows>(int r) {
      attend_tile<Isa, kRows>(args, block, scratch, rows + r, r == 0 ? &prefetch : nullptr);
    });
  }
  store_partial<Isa>(layout.v, layout.head_dim, rows, num_rows, out);
}

}  // namespace foscar::cpu
