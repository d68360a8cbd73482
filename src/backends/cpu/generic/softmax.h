// Softmax of one block for one row, in base 2: logits in scratch.p become probabilities relative to
// the running maximum, and the row's earlier sums are rescaled. The denominator is summed from the
// exact probabilities. A NaN logit reaches row_sum, hence the row's whole output, and nothing else.
//
// For the usual V format, one group whose scales are alike, the first half of the V fold happens on
// the way while p is in a register: scratch.p then holds p * v_scale, and the offset part of the
// output is summed.
#pragma once

#include <limits>

#include "backends/cpu/scratch.h"

namespace foscar::cpu {

template <typename Isa>
float power_of_two(float exponent) {
  alignas(64) float lanes[Isa::kLanes];
  Isa::store(lanes, Isa::exp2(Isa::set(exponent)));
  return lanes[0];
}

// What a block's V parameters are for the fused form: [num_tokens] in lane order.
struct FoldInputs {
  const float* v_scale;
  const float* v_offset;
};

// kNaturalOrder: lane l holds token l instead of Isa::token_of_lane(l). `num_tokens` is a multiple
// of kLanes; `limit`: tokens that the row sees (may be negative). kFold: see above. kKeep: of those it sees only the tokens whose `keep`
// is 1 (modify.h), at least one; otherwise `keep` is not read.
template <typename Isa, bool kFold, bool kNaturalOrder = false, bool kKeep = false>
void softmax_block(float* p, int num_tokens, int limit, int head_dim, const FoldInputs& fold,
                   const float* keep, RowState& row) {
  using F = typename Isa::F;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const int visible = limit < num_tokens ? (limit > 0 ? limit : 0) : num_tokens;
  const auto select = [](int tokens, F a, F b) {
    if constexpr (kNaturalOrder) return Isa::select_lanes(tokens, a, b);
    return Isa::select_tokens(tokens, a, b);
  };
  const int whole =
      visible / Isa::kLanes * Isa::kLanes;  // tokens in vectors that the row sees entirely
  F largest = Isa::set(-kInf);
  for (int t = 0; t < whole; t += Isa::kLanes) largest = Isa::max(Isa::load(p + t), largest);
  for (int t = whole; t < num_tokens; t += Isa::kLanes) {
    largest = Isa::max(select(visible - t, Isa::load(p + t), Isa::set(-kInf)), largest);
  }
  const float block_max = Isa::max_lane(largest);
  if (block_max > row.row_max) {
    const float correction = power_of_two<Isa>(row.row_max - block_max);
    row.row_max = block_max;
    row.row_sum *= correction;
    for (float& sum : row.offset_sum) sum *= correction;
    for (int c = 0; c < head_dim; c += Isa::kLanes) {
      Isa::store(row.o + c, Isa::mul(Isa::load(row.o + c), Isa::set(correction)));
    }
  }
  const F reference = Isa::set(row.row_max);
  F sum = Isa::set(0.0f);
  F offset = Isa::set(0.0f);
  F weight = Isa::set(0.0f);
  const auto step = [&](int t, auto mask) {
    F value = mask(Isa::exp2(Isa::sub(Isa::load(p + t), reference)));
    sum = Isa::add(sum, value);
    if constexpr (kFold) {
      // The mask again: p is 0 in a slot that this row does not see, but its offset may be NaN.
      offset = Isa::add(offset, mask(Isa::mul(value, Isa::load(fold.v_offset + t))));
      value = Isa::mul(value, Isa::load(fold.v_scale + t));
      weight = Isa::max(value, weight);
    }
    Isa::store(p + t, value);
  };
  if constexpr (kKeep) {
    for (int t = 0; t < num_tokens; t += Isa::kLanes) {
      step(t, [=](F value) { return Isa::keep_between(Isa::load(keep + t), 0.0f, 1.0f, value); });
    }
  } else {
    for (int t = 0; t < whole; t += Isa::kLanes) step(t, [](F value) { return value; });
    for (int t = whole; t < num_tokens; t += Isa::kLanes) {
      step(t, [=](F value) { return select(visible - t, value, Isa::set(0.0f)); });
    }
  }
  row.row_sum += Isa::sum(sum);
  if constexpr (kFold) {
    row.offset_sum[0] += Isa::sum(offset);
    row.largest_weight = Isa::max_lane(weight);
  }
}

}  // namespace foscar::cpu
