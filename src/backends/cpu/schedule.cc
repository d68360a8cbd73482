#include "backends/cpu/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "backends/cpu/flush_to_zero.h"
#include "backends/cpu/thread_pool.h"
#include "core/softmax_state.h"
#include "core/visible.h"

namespace foscar::cpu {
namespace {

// Tokens per split when the caller leaves the choice; a function of the request's own length only.
// Long enough that preparing the query and merging cost about one percent, short enough that one
// request of 4K tokens with 8 KV heads makes 32 pieces.
constexpr int split_tokens(int kv_len) { return kv_len <= 8192 ? 1024 : 2048; }

constexpr float kLn2 = 0.693147180559945309417f;
constexpr float kLog2E = 1.44269504088896340736f;

DecodeScratch& thread_scratch(std::size_t num_rows) {
  thread_local std::unique_ptr<DecodeScratch> scratch = std::make_unique<DecodeScratch>();
  if (scratch->rows.size() < num_rows) scratch->rows.resize(num_rows);
  return *scratch;
}

// The partial states of a whole call: piece i has rows i*R .. i*R+R-1.
struct Partials {
  std::int64_t rows_per_piece;
  int head_dim;
  std::unique_ptr<float[]> o;
  std::unique_ptr<float[]> row_max;
  std::unique_ptr<float[]> row_sum;

  Partials(std::int64_t num_pieces, std::int64_t rows, int dim)
      : rows_per_piece(rows),
        head_dim(dim),
        o(new float[static_cast<std::size_t>(num_pieces * rows * dim)]),
        row_max(new float[static_cast<std::size_t>(num_pieces * rows)]),
        row_sum(new float[static_cast<std::size_t>(num_pieces * rows)]) {}

  PartialState piece(std::int64_t index) const {
    const std::int64_t row = index * rows_per_piece;
    return {o.get() + row * head_dim, row_max.get() + row, row_sum.get() + row};
  }
};

// One output row from the same row of `num_splits` pieces, `stride` pieces apart, in the order of
// the splits.
void merge_row(const DecodeArgs& args, const Partials& partials, std::int64_t first_piece,
               std::int64_t stride, int num_splits, int b, int t, int head, std::int64_t row) {
  float highest = -std::numeric_limits<float>::infinity();
  for (int s = 0; s < num_splits; ++s) {
    highest = std::max(highest, partials.piece(first_piece + s * stride).row_max[row]);
  }
  // The sink enters here and only here: once per row, however many pieces there are.
  constexpr float kNoSink = -std::numeric_limits<float>::infinity();
  const float sink =
      args.modifiers.sinks == nullptr ? kNoSink : args.modifiers.sinks[head] * kLog2E;
  if (sink > highest) highest = sink;
  float o[kMaxHeadDim] = {};
  SoftmaxState<float> state;
  if (sink != kNoSink) state.row_sum = std::exp2(sink - highest);  // NaN goes on
  for (int s = 0; s < num_splits; ++s) {
    const PartialState piece = partials.piece(first_piece + s * stride);
    if (piece.row_sum[row] == 0.0f) continue;  // empty; NaN goes on
    const float weight = std::exp2(piece.row_max[row] - highest);
    state.row_sum += weight * piece.row_sum[row];
    const float* part = piece.o + row * partials.head_dim;
    for (int c = 0; c < partials.head_dim; ++c) o[c] += weight * part[c];
  }
  if (!state.empty()) state.row_max = highest * kLn2;
  const float factor = state.output_factor();
  const std::int64_t element = b * args.o.batch_stride + t * args.o.token_stride +
                               static_cast<std::int64_t>(head) * args.o.head_stride;
  for (int c = 0; c < partials.head_dim; ++c)
    store_from_float(args.o.data, element + c, args.o.dtype, o[c] * factor);
  if (args.lse != nullptr) {
    const DecodeShape& shape = args.shape;
    args.lse[(static_cast<std::int64_t>(b) * shape.qo_len + t) * shape.num_qo_heads + head] =
        state.lse();
  }
}

// piece_function(item, next, kv_len, scratch, out) attends one piece.
template <typename F>
void run_pieces_and_merge(const DecodeArgs& args, F&& piece_function) {
  const DecodeShape& shape = args.shape;
  const int gqa = shape.gqa_group_size();
  const std::int64_t rows = static_cast<std::int64_t>(shape.qo_len) * gqa;
  // Tokens before every row's window are no work: pieces begin at the tile of the first row's.
  const auto first_token = [&](int kv_len) {
    return first_visible(kv_len, shape.qo_len, 0, args.modifiers.window_left) / kTileTokens *
           kTileTokens;
  };
  const auto map_of = [&](int tokens) {
    return WorkMap{shape.num_kv_heads,
                   args.kv_chunk_size > 0 ? args.kv_chunk_size : split_tokens(tokens)};
  };
  const auto tokens_of = [&](int b) {
    const int kv_len = args.table.kv_len(b);
    return kv_len - first_token(kv_len);
  };
  const auto first_item =
      std::make_unique<std::int64_t[]>(static_cast<std::size_t>(shape.batch_size) + 1);
  for (int b = 0; b < shape.batch_size; ++b) {
    first_item[b + 1] = first_item[b] + map_of(tokens_of(b)).num_items(tokens_of(b));
  }
  const std::int64_t num_items = first_item[shape.batch_size];
  const auto item_at = [&](std::int64_t index) {
    const int b = request_of_item(first_item.get(), shape.batch_size, index);
    const int tokens = tokens_of(b);
    WorkItem item = map_of(tokens).item(b, tokens, index - first_item[b]);
    const int skipped = args.table.kv_len(b) - tokens;
    item.kv_begin += skipped;
    item.kv_end += skipped;
    return item;
  };
  const int threads = num_threads();
  const Partials partials(num_items, rows, shape.head_dim);
  parallel_for(num_items, [&](std::int64_t index) {
    const WorkItem item = item_at(index);
    const int kv_len = args.table.kv_len(item.request_idx);
    // Threads take pieces in turn.
    const std::int64_t next_index = index + threads;
    const bool has_next = next_index < num_items;
    const WorkItem next = has_next ? item_at(next_index) : item;
    DecodeScratch& scratch = thread_scratch(static_cast<std::size_t>(rows));
    const FlushToZero guard;
    piece_function(item, has_next ? &next : nullptr, kv_len, scratch, partials.piece(index));
  });
  parallel_for(static_cast<std::int64_t>(shape.batch_size) * shape.num_kv_heads,
               [&](std::int64_t index) {
                 const int b = static_cast<int>(index / shape.num_kv_heads);
                 const int kv_head = static_cast<int>(index % shape.num_kv_heads);
                 const int num_splits = map_of(tokens_of(b)).num_splits(tokens_of(b));
                 for (int t = 0; t < shape.qo_len; ++t) {
                   for (int h = 0; h < gqa; ++h) {
                     merge_row(args, partials, first_item[b] + kv_head, shape.num_kv_heads,
                               num_splits, b, t, kv_head * gqa + h, t * gqa + h);
                   }
                 }
               });
}

}  // namespace

void run_decode(const Kernels& kernels, const DecodeArgs& args) {
  run_pieces_and_merge(args, [&](const WorkItem& item, const WorkItem* next, int kv_len,
                                 DecodeScratch& scratch, const PartialState& out) {
    kernels.decode_piece(args, item, next, kv_len, scratch, out);
  });
}

void run_decode_dense(const Kernels& kernels, const DenseDecodeArgs& args) {
  run_pieces_and_merge(args.decode, [&](const WorkItem& item, const WorkItem* next, int kv_len,
                                        DecodeScratch& scratch, const PartialState& out) {
    kernels.dense_piece(args, item, next, kv_len, scratch, out);
  });
}

void run_quantize_append(const Kernels& kernels, const AppendArgs& args) {
  constexpr std::int64_t kTokensPerPiece = 16;
  parallel_for((args.num_tokens + kTokensPerPiece - 1) / kTokensPerPiece, [&](std::int64_t piece) {
    const std::int64_t end = std::min(args.num_tokens, (piece + 1) * kTokensPerPiece);
    for (std::int64_t token = piece * kTokensPerPiece; token < end; ++token)
      kernels.append_token(args, token);
  });
}

void run_dequantize(const Kernels& kernels, const DequantizeArgs& args) {
  constexpr int kTokensPerPiece = 64;
  const WorkMap map{1, kTokensPerPiece};
  const auto first_item =
      std::make_unique<std::int64_t[]>(static_cast<std::size_t>(args.batch_size) + 1);
  for (int b = 0; b < args.batch_size; ++b) {
    first_item[b + 1] = first_item[b] + map.num_items(args.table.kv_len(b));
  }
  parallel_for(first_item[args.batch_size], [&](std::int64_t index) {
    const int b = request_of_item(first_item.get(), args.batch_size, index);
    const WorkItem item = map.item(b, args.table.kv_len(b), index - first_item[b]);
    kernels.dequantize_tokens(args, b, item.kv_begin, item.kv_end);
  });
}

void run_merge_states(const MergeArgs& args) {
  const std::int64_t num_rows = args.num_rows * args.num_heads;
  constexpr std::int64_t kRowsPerPiece = 64;
  const auto head_dim = static_cast<std::size_t>(args.head_dim);  // any: no cache is involved
  parallel_for((num_rows + kRowsPerPiece - 1) / kRowsPerPiece, [&](std::int64_t piece) {
    const std::int64_t end = std::min(num_rows, (piece + 1) * kRowsPerPiece);
    const auto o = std::make_unique<double[]>(head_dim);
    for (std::int64_t row = piece * kRowsPerPiece; row < end; ++row) {
      std::fill_n(o.get(), head_dim, 0.0);
      SoftmaxState<double> state;
      for (int s = 0; s < args.num_states; ++s) {
        const std::int64_t index = s * num_rows + row;
        const double lse = args.lse[index];
        if (lse == -std::numeric_limits<double>::infinity()) continue;
        // NaN and +inf must reach the output: the row sum carries them.
        const double sum = lse < std::numeric_limits<double>::infinity()
                               ? 1.0
                               : std::numeric_limits<double>::quiet_NaN();
        const auto weights = state.merge({lse, sum});
        for (int c = 0; c < args.head_dim; ++c) {
          o[c] = weights.self * o[c] +
                 weights.other * load_as_float(args.v, index * args.head_dim + c, args.dtype);
        }
      }
      const double factor = state.output_factor();
      for (int c = 0; c < args.head_dim; ++c) {
        store_from_float(args.o, row * args.head_dim + c, args.dtype,
                         static_cast<float>(o[c] * factor));
      }
      if (args.lse_out != nullptr) args.lse_out[row] = static_cast<float>(state.lse());
    }
  });
}

}  // namespace foscar::cpu
