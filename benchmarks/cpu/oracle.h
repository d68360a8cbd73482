// Attention in double precision over the dequantized rows, for request 0: what a timed kernel must
// have computed.
#pragma once

#include "problem.h"

namespace foscar::bench {

// ||o - reference|| / ||reference|| over request 0 for what is in problem.o. `cache` null: the BF16
// cache. `reference` is computed when empty and can be reused for the same cache.
double relative_error(Problem& problem, const LowBitCache* cache, std::vector<double>& reference);

}  // namespace foscar::bench
