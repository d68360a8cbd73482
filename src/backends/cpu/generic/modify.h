// Score modifiers on the logits of a block, between scores and softmax: the soft cap, and the tokens that a row does not see although
// later ones are visible to it (before its window, or left out by its row of the mask). Both are off the usual path: a branch per
// block where they are not used.
#pragma once

#include <cstdint>
#include <limits>

#include "backends/cpu/scratch.h"

namespace foscar::cpu {

// p = cap * tanh(p / cap), in place; num_tokens is a multiple of kLanes. With x = p / cap cut to +-10, where tanh is 1 to FP32:
//
//     e = exp(2 x - 20), k = exp(-20):   tanh x = (e - k) / (e + k)
//
// absolute error about 2^-22, exponents never positive, NaN stays NaN.
template <typename Isa>
void cap_logits(float* p, int num_tokens, float cap) {
  using F = typename Isa::F;
  constexpr float kLimit = 10.0f;
  constexpr float kTwoLog2E = 2.88539008177792681472f;
  constexpr float kSmallest = 2.06115362243855783e-9f;  // exp(-20)
  const F scale = Isa::set(1.0f / cap), k = Isa::set(kSmallest);
  for (int t = 0; t < num_tokens; t += Isa::kLanes) {
    // The number second: min and max return it where it is NaN.
    F x = Isa::max(Isa::set(-kLimit), Isa::mul(Isa::load(p + t), scale));
    x = Isa::min(Isa::set(kLimit), x);
    const F e = Isa::exp2(Isa::mul(Isa::sub(x, Isa::set(kLimit)), Isa::set(kTwoLog2E)));
    Isa::store(p + t, Isa::mul(Isa::set(cap), Isa::div(Isa::sub(e, k), Isa::add(e, k))));
  }
}

// Whether the row sees token t of the part, which lies before its num_visible.
inline bool sees_token(const RowState& row, int t) {
  if (t < row.first_visible) return false;
  return row.mask_row == nullptr || t < row.new_begin || row.mask_row[t - row.new_begin] != 0;
}

// Whether tokens of begin .. end-1 may be hidden from the row other than by num_visible.
inline bool may_hide(const RowState& row, int begin, int end) {
  return row.first_visible > begin || (row.mask_row != nullptr && end > row.new_begin);
}

// Marks which of the block's tokens the row sees: keep is 1 there and 0 elsewhere, and hidden logits become -inf. `begin` is the block's
// first token, num_tokens a multiple of kLanes, `limit` the tokens before num_visible. Returns how many are visible.
template <typename Isa, bool kNaturalOrder>
int hide_tokens(const RowState& row, int begin, int num_tokens, int limit, float* p, float* keep) {
  int visible = 0;
  for (int i = 0; i < num_tokens; ++i) {
    const int lane = i % Isa::kLanes;
    const int t = i - lane + (kNaturalOrder ? lane : Isa::token_of_lane(lane));
    const bool seen = t < limit && sees_token(row, begin + t);
    keep[i] = seen ? 1.0f : 0.0f;
    if (!seen) p[i] = -std::numeric_limits<float>::infinity();
    visible += seen ? 1 : 0;
  }
  return visible;
}

}  // namespace foscar::cpu
