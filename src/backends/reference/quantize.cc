// New rows into their slots: min and max of each group, then affine.h, value by value.
#include <cmath>
#include <vector>

#include "backends/reference/block.h"
#include "backends/reference/reference.h"

namespace foscar::reference {
namespace {

// `row` is the head_dim values of one (token, head), FP32.
void quantize_row(const float* row, std::uint8_t* block, const PageLayout& layout,
                  const SideLayout& side, int slot) {
  clear_row(block, layout, side, slot);
  for (int begin = 0; begin < layout.head_dim; begin += side.group_size) {
    float min = row[begin], max = row[begin];
    bool finite = true;
    for (int c = begin; c < begin + side.group_size; ++c) {
      finite = finite && std::isfinite(row[c]);
      if (row[c] < min) min = row[c];
      if (row[c] > max) max = row[c];
    }
    // A group that is not finite has a NaN offset, for which every code is 0.
    const AffineParams params = fit_affine(min, max, finite, side.bits, layout.param_dtype);
    write_params(block, layout, side, slot, begin, params);
    for (int c = begin; c < begin + side.group_size; ++c) {
      write_code(block, layout, side, slot, c, encode_affine(row[c], params, side.bits));
    }
  }
}

void quantize_side(const TokenRows& rows, const AppendArgs& args, const SideLayout& side,
                   std::int64_t token) {
  const std::int64_t slot = args.slot(token);
  std::vector<float> row(static_cast<std::size_t>(args.layout.head_dim));
  for (int head = 0; head < args.num_kv_heads; ++head) {
    for (int c = 0; c < args.layout.head_dim; ++c) {
      row[static_cast<std::size_t>(c)] = load_as_float(
          rows.data, token * rows.token_stride + head * rows.head_stride + c, rows.dtype);
    }
    quantize_row(row.data(), block_at(args.pool, slot / args.layout.page_size, head), args.layout,
                 side, static_cast<int>(slot % args.layout.page_size));
  }
}

}  // namespace

void quantize_append(const AppendArgs& args) {
  for (std::int64_t token = 0; token < args.num_tokens; ++token) {
    if (args.slot(token) < 0) continue;  // padding
    quantize_side(args.k, args, args.layout.k, token);
    quantize_side(args.v, args, args.layout.v, token);
  }
}

}  // namespace foscar::reference
