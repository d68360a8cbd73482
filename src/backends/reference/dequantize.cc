// Pages back to rows. In FP32 with one fused multiply-add, not in double, because this is an
// operation with a defined result that every backend reproduces bit by bit.
#include <cmath>

#include "backends/reference/block.h"
#include "backends/reference/reference.h"

namespace foscar::reference {
namespace {

// `row` is the index of element (b, t, head, 0) in `out`.
void dequantize_row(TokenPlace token, const PageLayout& layout, const SideLayout& side,
                    const TokenRows& out, std::int64_t row) {
  for (int c = 0; c < layout.head_dim; ++c) {
    const AffineParams params = read_params(token.block, layout, side, token.slot, c);
    const int code = read_code(token.block, layout, side, token.slot, c);
    store_from_float(out.data, row + c, out.dtype,
                     std::fma(params.scale, static_cast<float>(code), params.offset));
  }
}

}  // namespace

void dequantize(const DequantizeArgs& args) {
  for (int b = 0; b < args.batch_size; ++b) {
    for (int t = 0; t < args.table.kv_len(b); ++t) {
      for (int head = 0; head < args.num_kv_heads; ++head) {
        const TokenPlace token = find_token(args.table, args.pool, b, head, t);
        dequantize_row(
            token, args.layout, args.layout.k, args.k,
            b * args.k_batch_stride + t * args.k.token_stride + head * args.k.head_stride);
        dequantize_row(
            token, args.layout, args.layout.v, args.v,
            b * args.v_batch_stride + t * args.v.token_stride + head * args.v.head_stride);
      }
    }
  }
}

}  // namespace foscar::reference
