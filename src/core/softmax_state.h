// SoftmaxState: what online softmax carries for one row, and how two of them become one. In formulas
//
//     m = row_max, l = sum exp(logit - m), o = sum exp(logit - m) * v         (unnormalised)
//     merge: m = max(m_a, m_b), w_x = exp(m_x - m), l = w_a l_a + w_b l_b, o = w_a o_a + w_b o_b
//     result: o / l,  lse = m + ln l
//
// The rule for empty rows: no visible key means m = -inf, l = 0, result exactly 0 with lse exactly -inf. A merge with an empty
// state returns the other one bit by bit; (-inf) - (-inf) is never formed.
#pragma once

#include <cmath>
#include <limits>

#include "foscar/hd.h"

namespace foscar {

template <typename Real>
struct SoftmaxState {
  Real row_max = -std::numeric_limits<Real>::infinity();
  Real row_sum = 0;

  FOSCAR_HD bool empty() const { return row_sum == Real(0); }

  // Factors for the two sides' `o`; afterwards *this is the merged state.
  struct Weights {
    Real self;
    Real other;
  };
  FOSCAR_HD Weights merge(const SoftmaxState& other) {
    if (other.empty()) return {1, 0};
    if (empty()) {
      *this = other;
      return {0, 1};
    }
    const Real merged_max = row_max > other.row_max ? row_max : other.row_max;
    const Weights w{std::exp(row_max - merged_max), std::exp(other.row_max - merged_max)};
    row_sum = w.self * row_sum + w.other * other.row_sum;
    row_max = merged_max;
    return w;
  }

  // Natural log of the sum of exponentials.
  FOSCAR_HD Real lse() const {
    return empty() ? -std::numeric_limits<Real>::infinity() : row_max + std::log(row_sum);
  }
  // What `o` is multiplied by at the end.
  FOSCAR_HD Real output_factor() const { return empty() ? Real(0) : Real(1) / row_sum; }
};

}  // namespace foscar
