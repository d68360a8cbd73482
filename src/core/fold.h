// Affine folding: where a group's scale and offset go instead of to every value, and what a masked code is worth. With q, p the
// query and the (unnormalised) probabilities, s, o a group's scale and offset, c codes; per token t and channel j:
//
//   K token-wise     logit  = s_t (q . c_t) + o_t sum(q)                          kAccumulator
//   K channel-wise   logit  = (q s) . c_t + q . o                                 kQuery
//   V token-wise     out_j  = sum_t (p_t s_t) c_tj + sum_t p_t o_t                kProb
//   V channel-wise   out_j  = s_j sum_t p_t c_tj + o_j sum_t p_t                  kOutput
//
// Each holds group by group, and adds up over groups. In exact arithmetic all are attention over s c + o. What is left to a
// backend is the order of operations and the precision of q and p; offsets are part of the logits and so of the LSE.
//
// Direct operands: a word of packed codes under position_mask() is a vector of 8-bit integers as it is, each worth
// position_weight() times its code. The weight is undone where it costs least: in the query or between accumulators
// for K, once per output for V.
#pragma once

#include <cstdint>

#include "foscar/format/kv_format.h"
#include "foscar/hd.h"

namespace foscar {

enum class FoldSite : std::uint8_t { kQuery, kAccumulator, kProb, kOutput };
enum class KvSide : std::uint8_t { kK, kV };

FOSCAR_HD constexpr FoldSite fold_site(KvSide side, QuantAxis axis) {
  const bool token_wise = axis == QuantAxis::kToken;
  if (side == KvSide::kK) return token_wise ? FoldSite::kAccumulator : FoldSite::kQuery;
  return token_wise ? FoldSite::kProb : FoldSite::kOutput;
}

// Keeps position `position` of every byte of a 32-bit word of codes (format/packing.h).
FOSCAR_HD constexpr std::uint32_t position_mask(int bits, int position) {
  return (bits == 2 ? 0x03030303u : 0x0f0f0f0fu) << (bits * position);
}
// What a code of that position is worth under the mask, in units of the code.
FOSCAR_HD constexpr int position_weight(int bits, int position) { return 1 << (bits * position); }

// One group's share of a logit, K token-wise. `dot` is q . codes and `q_sum` the sum of q over the group.
template <typename Real>
FOSCAR_HD constexpr Real accumulator_fold(Real dot, Real q_sum, Real scale, Real offset) {
  return scale * dot + offset * q_sum;
}
// What a token's codes are multiplied by, V token-wise; p * offset is added to every channel of the group.
template <typename Real>
FOSCAR_HD constexpr Real prob_fold(Real p, Real scale) {
  return p * scale;
}
// What a channel's codes are multiplied by, K channel-wise; q * offset is added to every logit of the group.
template <typename Real>
FOSCAR_HD constexpr Real query_fold(Real q, Real scale) {
  return q * scale;
}
// One group's share of an output, V channel-wise. `dot` is p . codes and `p_sum` the sum of p over the group.
template <typename Real>
FOSCAR_HD constexpr Real output_fold(Real dot, Real p_sum, Real scale, Real offset) {
  return scale * dot + offset * p_sum;
}

}  // namespace foscar
