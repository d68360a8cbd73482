// Whether rows can be moved in 16-byte pieces. Rows that cannot are moved element by element by the
// same kernels.
#pragma once

#include <cstdint>

#include "dispatch/backend.h"

namespace foscar::cuda {

inline bool has_wide_rows(const TokenRows& rows, std::int64_t batch_stride = 0) {
  constexpr std::int64_t kWideBytes = 16;
  const std::int64_t element = dtype_bytes(rows.dtype);
  return reinterpret_cast<std::uintptr_t>(rows.data) % kWideBytes == 0 &&
         rows.token_stride * element % kWideBytes == 0 &&
         rows.head_stride * element % kWideBytes == 0 && batch_stride * element % kWideBytes == 0;
}

}  // namespace foscar::cuda
