// rotate_rows: check, choose a backend, hand over.
#include "foscar/rotation.h"

#include <bit>
#include <cmath>
#include <string>

#include "api/check_tensor.h"
#include "core/clip.h"
#include "dispatch/backend.h"

namespace foscar {
namespace {

constexpr int kSmallestBlock = 16;
constexpr const char* kRowsShape =
    "[num_tokens, num_heads, head_dim] or [batch_size, qo_len, num_heads, head_dim]";
constexpr const char* kMatrixShape = "[head_dim, head_dim] or [num_kv_heads, head_dim, head_dim]";

RowView row_view(const Tensor& t) {
  const bool four = t.ndim == 4;
  return {t.data, t.dtype, used_stride(t, 0), four ? used_stride(t, 1) : 0,
          used_stride(t, four ? 2 : 1)};
}

void check_rows_layout(const char* name, const Tensor& t) {
  require_inner_contiguous(name, t);
  require_aligned(name, t, dtype_bytes(t.dtype));
}

int checked_order(int order, int head_dim) {
  if (order == 0) return hadamard_order(head_dim);
  if (order < 1 || order > kMaxHadamardOrder || !std::has_single_bit(unsigned(order)) ||
      head_dim % order != 0) {
    reject(ErrorKind::kInvalidArgument, "hadamard_order",
           std::to_string(order) + " for head_dim " + std::to_string(head_dim),
           "the powers of two 1 .. " + std::to_string(kMaxHadamardOrder) +
               " that divide head_dim, or 0 for the largest");
  }
  return order;
}

RotateArgs check_rotate(const RotateParams& params) {
  const Tensor &x = params.x, &out = params.out, &matrix = params.rotation.matrix;
  const bool dense = matrix.defined();
  require_given("x", x);
  require_given("out", out);
  if (dense) require_given("rotation", matrix);

  require_device("out", out, x.device, "x");
  if (dense) require_device("rotation", matrix, x.device, "x");

  require_dtype("x", x, {DType::kBF16, DType::kF16, DType::kF32});
  require_dtype("out", out, {DType::kBF16, DType::kF16, DType::kF32});
  if (dense) require_dtype("rotation", matrix, {DType::kF32, DType::kF16, DType::kBF16});

  require_rank("x", x, {3, 4}, kRowsShape);
  check_rows_layout("x", x);
  require_rank("out", out, {x.ndim}, "the shape of x, " + shape_text(x));
  check_rows_layout("out", out);
  require_no_overlap("out", out);
  if (dense) {
    require_rank("rotation", matrix, {2, 3}, kMatrixShape);
    require_aligned("rotation", matrix, dtype_bytes(matrix.dtype));
  }

  RotateArgs args{};
  const int heads_dim = x.ndim - 2;
  args.batch_size = require_int("x", x, 0, x.ndim == 4 ? "batch_size" : "num_tokens");
  args.num_tokens = x.ndim == 4 ? require_int("x", x, 1, "qo_len") : 1;
  args.num_heads = require_int("x", x, heads_dim, "num_heads");
  args.head_dim = require_int("x", x, x.ndim - 1, "head_dim");
  if (args.head_dim < 1 || args.head_dim > kMaxRotationDim) {
    reject(ErrorKind::kInvalidArgument, "x", "head_dim " + std::to_string(args.head_dim),
           "1 .. " + std::to_string(kMaxRotationDim));
  }
  for (int dim = 0; dim < x.ndim; ++dim) {
    require_extent("out", out, dim, x.shape[std::size_t(dim)], "the shape of x");
  }
  if (params.num_kv_heads < 1 || args.num_heads < 1 || args.num_heads % params.num_kv_heads != 0) {
    reject(ErrorKind::kInvalidArgument, "num_kv_heads",
           std::to_string(params.num_kv_heads) + " for " + std::to_string(args.num_heads) +
               " heads in x",
           "a positive divisor of the number of heads");
  }
  if (dense) {
    require_extent("rotation", matrix, matrix.ndim - 2, args.head_dim, "head_dim of x");
    require_extent("rotation", matrix, matrix.ndim - 1, args.head_dim, "head_dim of x");
    if (matrix.ndim == 3)
      require_extent("rotation", matrix, 0, params.num_kv_heads, "num_kv_heads");
    args.matrix = matrix.data;
    args.matrix_dtype = matrix.dtype;
    args.matrix_stride = matrix.ndim == 3 ? used_stride(matrix, 0) : 0;
    args.row_stride = used_stride(matrix, matrix.ndim - 2);
    args.column_stride = used_stride(matrix, matrix.ndim - 1);
    if (params.inverse) std::swap(args.row_stride, args.column_stride);
  } else {
    args.hadamard_order = checked_order(params.rotation.hadamard_order, args.head_dim);
  }
  if (!(params.clip_ratio >= 0.0 && params.clip_ratio < 1.0)) {
    reject(ErrorKind::kInvalidArgument, "clip_ratio", std::to_string(params.clip_ratio),
           "0 (off) up to, not including, 1");
  }
  args.clip_index = params.clip_ratio > 0.0 ? clip_index(params.clip_ratio, args.head_dim) : -1;
  args.heads_per_matrix =
      dense && matrix.ndim == 3 ? args.num_heads / params.num_kv_heads : args.num_heads;
  args.x = row_view(x);
  args.out = row_view(out);
  args.device_index = x.device.index;
  return args;
}

}  // namespace

int hadamard_order(int head_dim) {
  const int order = head_dim < 1 ? 0 : std::min(head_dim & -head_dim, kMaxHadamardOrder);
  if (order < kSmallestBlock || head_dim > kMaxRotationDim) {
    reject(ErrorKind::kInvalidArgument, "head_dim", std::to_string(head_dim),
           "multiples of " + std::to_string(kSmallestBlock) + " up to " +
               std::to_string(kMaxRotationDim) + " for a block Hadamard rotation");
  }
  return order;
}

void rotate_rows(const RotateParams& params, const ExecutionContext& context) {
  RotateArgs args = check_rotate(params);
  const Backend& backend = find_backend(params.x.device.type, context.backend);
  if (backend.rotate_rows == nullptr) {
    throw Error(ErrorKind::kUnsupported,
                "rotate_rows: backend '" + std::string(backend.name) +
                    "' does not offer it; rotate with a matrix product of your framework, or on "
                    "the CPU backends");
  }
  if (args.batch_size == 0 || args.num_tokens == 0) return;
  args.stream = context.stream;
  backend.rotate_rows(args);
}

}  // namespace foscar
