// Clipping by quantile, OSCAR's rule: the threshold is the element at index int(ratio * head_dim) of a row's magnitudes
// in ascending order (128 channels: ratio 0.96 -> index 122, the largest 5 are limited; 0.92 -> 117).
#pragma once

#include <algorithm>
#include <cmath>

namespace foscar {

// The product is formed in double and truncated, as the rule's source does.
inline int clip_index(double ratio, int head_dim) { return static_cast<int>(ratio * head_dim); }

// Limits row [head_dim] to the magnitude at `index`; `magnitudes` is scratch of the same length. A row with a NaN or an
// infinity stays as it is.
template <typename T>
void clip_row(T* row, int head_dim, int index, T* magnitudes) {
  for (int c = 0; c < head_dim; ++c) {
    if (!std::isfinite(row[c])) return;
    magnitudes[c] = std::abs(row[c]);
  }
  std::nth_element(magnitudes, magnitudes + index, magnitudes + head_dim);
  const T limit = magnitudes[index];
  for (int c = 0; c < head_dim; ++c) row[c] = std::clamp(row[c], -limit, limit);
}

}  // namespace foscar
