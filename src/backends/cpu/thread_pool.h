// The library's own threads. parallel_for() cuts a call into numbered pieces; the calling thread
// and parked workers take them one by one. Results never depend on who takes what: pieces are
// independent and write to their own places.
//
//   number of threads   min(processors the calling thread may run on, FOSCAR_NUM_THREADS if it is
//   set), read at each
//                       call, so a program that pins itself or runs many processes is not
//                       oversubscribed
//   concurrent calls    allowed; workers help whichever call has pieces left
//   fork                the child starts with no workers and makes its own when it needs them
//   idle                workers wait briefly for more work, then sleep in the kernel
#pragma once

#include <cstdint>

namespace foscar::cpu {

// Threads that a call from this thread would use, the caller included; at least 1. Throws
// Error{kInvalidArgument} for a FOSCAR_NUM_THREADS that is no positive number.
int num_threads();

// Non-owning reference to a callable void(std::int64_t piece).
class PieceFunction {
 public:
  template <typename F>
  explicit PieceFunction(F& f)
      : object_(&f),
        call_([](void* object, std::int64_t piece) { (*static_cast<F*>(object))(piece); }) {}
  void operator()(std::int64_t piece) const { call_(object_, piece); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t);
};

// Runs function(0) .. function(num_pieces - 1), returns when all are done. The first exception is
// rethrown here.
void run_pieces(std::int64_t num_pieces, const PieceFunction& function);

template <typename F>
void parallel_for(std::int64_t num_pieces, F&& f) {
  run_pieces(num_pieces, PieceFunction(f));
}

}  // namespace foscar::cpu
