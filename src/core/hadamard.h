// The block Hadamard matrix: head_dim / order blocks on the diagonal, each the Sylvester matrix of that order, divided by
// sqrt(order). Entry (i, j) of a block is (-1)^popcount(i & j), so the matrix is symmetric and its own inverse.
#pragma once

#include <bit>
#include <cmath>

namespace foscar {

constexpr bool hadamard_negative(int i, int j) {
  return std::popcount(static_cast<unsigned>(i & j)) % 2 != 0;
}

inline double hadamard_scale(int order) { return 1.0 / std::sqrt(static_cast<double>(order)); }

}  // namespace foscar
