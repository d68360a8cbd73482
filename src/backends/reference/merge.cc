// Partial results of the same queries over disjoint keys, weighted by exp(lse_s - max lse). An
// empty state (lse = -inf) has weight exactly 0 and its v is not read, so it may hold anything.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/reference/reference.h"

namespace foscar::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `row` counts (row, head) pairs of one state; there are `rows` of them.
void merge_row(const MergeArgs& args, std::int64_t row, std::int64_t rows) {
  double max = -kInfinity;
  bool broken =
      false;  // NaN or +inf among the weights: the row becomes NaN, never a plausible number
  for (int s = 0; s < args.num_states; ++s) {
    const double lse = args.lse[s * rows + row];
    broken = broken || std::isnan(lse) || lse == kInfinity;
    max = std::max(max, lse);
  }
  const bool empty = max == -kInfinity && !broken;
  const auto weight = [&](int s) {
    const double lse = args.lse[s * rows + row];
    return lse == -kInfinity ? 0.0 : std::exp(lse - max);
  };
  double sum = 0;
  for (int s = 0; s < args.num_states && !empty && !broken; ++s) sum += weight(s);

  for (int c = 0; c < args.head_dim; ++c) {
    double value = 0;
    for (int s = 0; s < args.num_states && !empty && !broken; ++s) {
      if (weight(s) == 0.0) continue;
      value += weight(s) * static_cast<double>(load_as_float(
                               args.v, (s * rows + row) * args.head_dim + c, args.dtype));
    }
    if (!empty) value /= sum;
    if (broken) value = std::numeric_limits<double>::quiet_NaN();
    store_from_float(args.o, row * args.head_dim + c, args.dtype, static_cast<float>(value));
  }
  if (args.lse_out == nullptr) return;
  const double lse = empty ? -kInfinity : max + std::log(sum);
  args.lse_out[row] = static_cast<float>(broken ? std::numeric_limits<double>::quiet_NaN() : lse);
}

}  // namespace

void merge_states(const MergeArgs& args) {
  const std::int64_t rows = args.num_rows * args.num_heads;
  for (std::int64_t row = 0; row < rows; ++row) merge_row(args, row, rows);
}

}  // namespace foscar::reference
