// While it lives, this thread reads and writes subnormal floats as zero: a cache with subnormal
// scales would otherwise run the softmax several times slower. Restores the thread's mode at the
// end; a caller's arithmetic never changes.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace foscar::cpu {

class FlushToZero {
 public:
#if defined(__SSE__)
  FlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushOutputs | kFlushInputs); }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlushOutputs = 0x8000;
  static constexpr unsigned kFlushInputs = 0x0040;
  unsigned saved_;

 public:
#else
  FlushToZero() = default;
#endif
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
};

}  // namespace foscar::cpu
