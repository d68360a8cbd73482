// o = softmax(sm_scale * q K^T) V, textbook form, over K and V as doubles:
//
//     logit_t = sm_scale * sum_c q_c K_tc        m = max logit        w_t = exp(logit_t - m)
//     o_c = sum_t w_t V_tc / sum_t w_t           lse = m + ln sum_t w_t
//
// over the keys that the row sees (core/visible.h). A soft cap replaces the logit by cap * tanh(logit / cap); a sink is one more
// logit in m and in the sum, without a value.
//
// The low-bit and the dense decode differ only in where K and V come from. kv_chunk_size has no
// effect: there is one pass over all keys.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/reference/block.h"
#include "backends/reference/reference.h"
#include "core/visible.h"

namespace foscar::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// K and V of one (request, KV head).
struct Rows {
  int kv_len;
  std::vector<double> k;  // [kv_len, head_dim]
  std::vector<double> v;  // [kv_len, head_dim]
};

Rows dequantized_rows(const DecodeArgs& args, int b, int head) {
  Rows rows{args.table.kv_len(b), {}, {}};
  const auto append_row = [&](const SideLayout& side, TokenPlace token, std::vector<double>& out) {
    for (int c = 0; c < args.shape.head_dim; ++c) {
      const AffineParams params = read_params(token.block, args.layout, side, token.slot, c);
      const int code = read_code(token.block, args.layout, side, token.slot, c);
      out.push_back(static_cast<double>(params.scale) * code + static_cast<double>(params.offset));
    }
  };
  for (int t = 0; t < rows.kv_len; ++t) {
    const TokenPlace token = find_token(args.table, args.pool, b, head, t);
    append_row(args.layout.k, token, rows.k);
    append_row(args.layout.v, token, rows.v);
  }
  return rows;
}

Rows dense_rows(const DenseDecodeArgs& args, int b, int head) {
  const DecodeArgs& decode = args.decode;
  Rows rows{decode.table.kv_len(b), {}, {}};
  const auto append_row = [&](const DensePoolView& pool, int t, std::vector<double>& out) {
    const std::int64_t page = decode.table.row(b)[t / decode.table.page_size];
    const std::int64_t row = page * pool.page_stride + head * pool.head_stride +
                             t % decode.table.page_size * pool.token_stride;
    for (int c = 0; c < decode.shape.head_dim; ++c) {
      out.push_back(load_as_float(pool.data, row + c, pool.dtype));
    }
  };
  for (int t = 0; t < rows.kv_len; ++t) {
    append_row(args.k, t, rows.k);
    append_row(args.v, t, rows.v);
  }
  return rows;
}

// Output row and LSE of query head h of new token i of request b.
void attend(const DecodeArgs& args, const Rows& rows, int b, int i, int h) {
  const DecodeShape& shape = args.shape;
  const ScoreModifiers& modifiers = args.modifiers;
  const std::int64_t q_row =
      b * args.q.batch_stride + i * args.q.token_stride + h * args.q.head_stride;
  const std::int64_t o_row =
      b * args.o.batch_stride + i * args.o.token_stride + h * args.o.head_stride;
  const std::uint8_t* mask_row =
      modifiers.mask == nullptr ? nullptr : modifiers.mask_row(b, i, shape.qo_len);

  std::vector<int> tokens;  // that the row sees
  for (int t = 0; t < rows.kv_len; ++t) {
    if (sees(t, rows.kv_len, shape.qo_len, i, args.causal, modifiers.window_left, mask_row))
      tokens.push_back(t);
  }
  const double sink =
      modifiers.sinks == nullptr ? -kInfinity : static_cast<double>(modifiers.sinks[h]);
  const double cap = modifiers.logits_soft_cap;
  std::vector<double> weights;
  double max = sink;
  for (const int t : tokens) {
    double dot = 0;
    for (int c = 0; c < shape.head_dim; ++c) {
      dot += static_cast<double>(load_as_float(args.q.data, q_row + c, args.q.dtype)) *
             rows.k[static_cast<std::size_t>(t) * shape.head_dim + c];
    }
    const double logit = static_cast<double>(args.sm_scale) * dot;
    weights.push_back(cap > 0 ? cap * std::tanh(logit / cap) : logit);
    max = std::max(max, weights.back());
  }
  // Nothing to see and no sink: the difference below would be (-inf) - (-inf).
  double sum = max == -kInfinity && tokens.empty() ? 0.0 : std::exp(sink - max);
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (int c = 0; c < shape.head_dim; ++c) {
    double value = 0;
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      value += weights[n] * rows.v[static_cast<std::size_t>(tokens[n]) * shape.head_dim + c];
    }
    store_from_float(args.o.data, o_row + c, args.o.dtype,
                     sum == 0.0 ? 0.0f : static_cast<float>(value / sum));
  }
  if (args.lse == nullptr) return;
  const std::int64_t row =
      (static_cast<std::int64_t>(b) * shape.qo_len + i) * shape.num_qo_heads + h;
  args.lse[row] = static_cast<float>(sum == 0.0 ? max : max + std::log(sum));
}

// `rows_of(b, kv_head)` returns Rows.
template <typename RowsOf>
void attend_all(const DecodeArgs& args, const RowsOf& rows_of) {
  const int group = args.shape.gqa_group_size();
  for (int b = 0; b < args.shape.batch_size; ++b) {
    for (int kv_head = 0; kv_head < args.shape.num_kv_heads; ++kv_head) {
      const Rows rows = rows_of(b, kv_head);
      for (int i = 0; i < args.shape.qo_len; ++i) {
        for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) attend(args, rows, b, i, h);
      }
    }
  }
}

}  // namespace

void decode(const DecodeArgs& args) {
  attend_all(args, [&](int b, int head) { return dequantized_rows(args, b, head); });
}

void decode_dense(const DenseDecodeArgs& args) {
  attend_all(args.decode, [&](int b, int head) { return dense_rows(args, b, head); });
}

}  // namespace foscar::reference
