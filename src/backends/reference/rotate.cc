// y_j = sum_i x_i R_ij in double, then the clip, then one rounding.
#include <vector>

#include "backends/reference/reference.h"
#include "core/clip.h"
#include "core/hadamard.h"

namespace foscar::reference {
namespace {

double matrix_entry(const RotateArgs& args, int matrix, int i, int j) {
  if (args.matrix != nullptr) {
    return load_as_float(args.matrix,
                         matrix * args.matrix_stride + i * args.row_stride + j * args.column_stride,
                         args.matrix_dtype);
  }
  const int order = args.hadamard_order;
  if (i / order != j / order) return 0.0;
  return (hadamard_negative(i % order, j % order) ? -1.0 : 1.0) * hadamard_scale(order);
}

}  // namespace

void rotate_rows(const RotateArgs& args) {
  const auto dim = static_cast<std::size_t>(args.head_dim);
  std::vector<double> r(dim * dim), x(dim), y(dim), magnitudes(dim);
  for (int head = 0; head < args.num_heads; ++head) {
    if (head % args.heads_per_matrix == 0) {
      for (std::size_t e = 0; e < dim * dim; ++e) {
        r[e] = matrix_entry(args, head / args.heads_per_matrix, static_cast<int>(e / dim),
                            static_cast<int>(e % dim));
      }
    }
    for (int b = 0; b < args.batch_size; ++b) {
      for (int t = 0; t < args.num_tokens; ++t) {
        const auto element = [&](const RowView& rows) {
          return b * rows.batch_stride + t * rows.token_stride + head * rows.head_stride;
        };
        for (std::size_t c = 0; c < dim; ++c) {
          x[c] = load_as_float(args.x.data, element(args.x) + static_cast<std::int64_t>(c),
                               args.x.dtype);
          y[c] = 0.0;
        }
        for (std::size_t i = 0; i < dim; ++i) {
          for (std::size_t j = 0; j < dim; ++j) {
            // A zero of a block structure must not turn another block's infinity into NaN.
            if (r[i * dim + j] != 0.0) y[j] += x[i] * r[i * dim + j];
          }
        }
        if (args.clip_index >= 0) {
          clip_row(y.data(), args.head_dim, args.clip_index, magnitudes.data());
        }
        for (std::size_t c = 0; c < dim; ++c) {
          store_from_float(args.out.data, element(args.out) + static_cast<std::int64_t>(c),
                           args.out.dtype, static_cast<float>(y[c]));
        }
      }
    }
  }
}

}  // namespace foscar::reference
