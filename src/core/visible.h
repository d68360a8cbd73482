// Which keys a query row sees. Keys of a request are numbered 0 .. kv_len-1; the newest qo_len of them are the new tokens, and row i
// is new token i, at position p = kv_len - qo_len + i. Without a mask a row sees one interval of keys:
//
//     first_visible ... p ... end_visible          causal: end = p + 1        window: first = p - window_left
//
// With a mask the interval ends at kv_len, and of the new tokens in it only those count that the mask names. Fewer keys than new
// tokens leave the first rows at negative positions: there is nothing to see for them where causal, and their window begins at 0.
#pragma once

#include <cstdint>

#include "foscar/hd.h"

namespace foscar {

// First key of row i.
FOSCAR_HD constexpr int first_visible(int kv_len, int qo_len, int i, int window_left) {
  const int p = kv_len - qo_len + i;
  return window_left < 0 || window_left >= p ? 0 : p - window_left;
}

// One past the last key of row i; `causal` is false where there is a mask.
FOSCAR_HD constexpr int end_visible(int kv_len, int qo_len, int i, bool causal) {
  if (!causal) return kv_len;
  const int end = kv_len - qo_len + i + 1;
  return end > 0 ? end : 0;
}

// Whether row i, whose row of the mask is `mask_row` (null: no mask), sees key t.
FOSCAR_HD constexpr bool sees(int t, int kv_len, int qo_len, int i, bool causal, int window_left,
                              const std::uint8_t* mask_row) {
  const bool masked = mask_row != nullptr;
  if (t < first_visible(kv_len, qo_len, i, window_left) ||
      t >= end_visible(kv_len, qo_len, i, causal && !masked)) {
    return false;
  }
  const int new_token = t - (kv_len - qo_len);
  return !masked || new_token < 0 || mask_row[new_token] != 0;
}

static_assert(first_visible(10, 1, 0, 3) == 6 && first_visible(10, 1, 0, 9) == 0 &&
              first_visible(10, 1, 0, -1) == 0 && first_visible(2, 4, 0, 0x7fffffff) == 0);
static_assert(end_visible(10, 4, 3, true) == 10 && end_visible(2, 4, 0, true) == 0);

}  // namespace foscar
