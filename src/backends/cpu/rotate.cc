// Cuts rows into blocks of one head each, widens them to FP32, hands them to the instruction set's kernel, rounds them to
// the output. The matrix is brought into FP32 rows once per call unless it already is.
#include "backends/cpu/rotate.h"

#include <algorithm>
#include <vector>

#include "backends/cpu/generic/rotate.h"
#include "backends/cpu/thread_pool.h"
#include "core/clip.h"

namespace foscar::cpu {
namespace {

std::vector<float> packed_matrices(const RotateArgs& args, int num_matrices) {
  const std::int64_t dim = args.head_dim;
  std::vector<float> packed(static_cast<std::size_t>(num_matrices * dim * dim));
  parallel_for(num_matrices * dim, [&](std::int64_t index) {
    const std::int64_t row = index / dim * args.matrix_stride + index % dim * args.row_stride;
    for (std::int64_t j = 0; j < dim; ++j) {
      packed[static_cast<std::size_t>(index * dim + j)] =
          load_as_float(args.matrix, row + j * args.column_stride, args.matrix_dtype);
    }
  });
  return packed;
}

}  // namespace

void run_rotate_rows(const Kernels& kernels, const RotateArgs& args) {
  const std::int64_t dim = args.head_dim;
  const int num_matrices = args.num_heads / args.heads_per_matrix;
  const bool as_is =
      args.matrix == nullptr || (args.matrix_dtype == DType::kF32 &&
                                 (dim == 1 || (args.row_stride == dim && args.column_stride == 1)));
  const std::vector<float> packed =
      as_is ? std::vector<float>() : packed_matrices(args, num_matrices);

  const std::int64_t tokens = static_cast<std::int64_t>(args.batch_size) * args.num_tokens;
  const std::int64_t blocks = (tokens + kRotateRows - 1) / kRotateRows;
  constexpr std::int64_t kBlocksPerPiece = 16;
  const std::int64_t pieces = (blocks + kBlocksPerPiece - 1) / kBlocksPerPiece;
  parallel_for(pieces * args.num_heads, [&](std::int64_t piece) {
    const auto head = static_cast<int>(piece / pieces);
    const int m = head / args.heads_per_matrix;
    const float* matrix = nullptr;
    if (args.matrix != nullptr) {
      matrix = as_is ? static_cast<const float*>(args.matrix) + m * args.matrix_stride
                     : packed.data() + m * dim * dim;
    }
    std::vector<float> x(static_cast<std::size_t>(kRotateRows * dim)), y(x.size());
    const auto element = [&](const RowView& rows, std::int64_t token) {
      return token / args.num_tokens * rows.batch_stride +
             token % args.num_tokens * rows.token_stride + head * rows.head_stride;
    };
    const std::int64_t begin = piece % pieces * kBlocksPerPiece * kRotateRows;
    const std::int64_t end = std::min(tokens, begin + kBlocksPerPiece * kRotateRows);
    for (std::int64_t first = begin; first < end; first += kRotateRows) {
      const std::int64_t count = std::min<std::int64_t>(kRotateRows, end - first);
      for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t row = element(args.x, first + k);
        for (std::int64_t c = 0; c < dim; ++c) {
          x[static_cast<std::size_t>(k * dim + c)] =
              load_as_float(args.x.data, row + c, args.x.dtype);
        }
      }
      std::fill(x.begin() + count * dim, x.end(), 0.0f);
      float* result = kernels.rotate_block(args, matrix, x.data(), y.data());
      float* scratch = result == x.data() ? y.data() : x.data();
      for (std::int64_t k = 0; k < count; ++k) {
        if (args.clip_index >= 0) {
          clip_row(result + k * dim, args.head_dim, args.clip_index, scratch);
        }
        const std::int64_t row = element(args.out, first + k);
        for (std::int64_t c = 0; c < dim; ++c) {
          store_from_float(args.out.data, row + c, args.out.dtype, result[k * dim + c]);
        }
      }
    }
  });
}

}  // namespace foscar::cpu
