// merge_states on the device: every thread makes a few channels of one (row, head),
//
//     o = sum_s w_s v_s / sum_s w_s,    w_s = exp(lse_s - max lse),    lse = max lse + ln sum_s w_s
//
// by the rules of core/softmax_state.h: an empty state (lse = -inf) has no weight and its v is not
// read. A NaN or +inf among the lse makes the row NaN.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "backends/cuda/launch.h"
#include "backends/cuda/merge/merge.h"
#include "foscar/error.h"

namespace foscar::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kStatesInFlight = 4;

struct MergeKernelArgs {
  MergeArgs call;
  std::int64_t num_rows;  // (row, head) pairs of a state
  int pieces_per_row;     // threads per row
};

// kPiece consecutive elements: 16 bytes, or one element where rows are not whole 16-byte pieces.
template <typename Element, int kPiece>
struct alignas(sizeof(Element) * kPiece) Piece {
  Element x[kPiece];
};

__device__ float widen(float x) { return x; }
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename Element>
__device__ Element narrow(float x) {
  if constexpr (std::is_same_v<Element, float>) return x;
  if constexpr (std::is_same_v<Element, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) return __float2bfloat16_rn(x);
}

template <typename Element, int kPiece>
__global__ void __launch_bounds__(kThreads)
    merge_rows(const __grid_constant__ MergeKernelArgs args) {
  using PieceT = Piece<Element, kPiece>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = thread / args.pieces_per_row;
  if (row >= args.num_rows) return;
  const int num_states = args.call.num_states;
  const float* lse = args.call.lse + row;

  float max_lse = -INFINITY;
  bool broken = false;
  for (int s = 0; s < num_states; ++s) {
    const float x = __ldg(lse + s * args.num_rows);
    broken = broken || !(x < INFINITY);  // +inf or NaN
    max_lse = fmaxf(max_lse, x);
  }
  const bool empty = max_lse == -INFINITY;

  float sum = 0.0f;
  float o[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) o[i] = 0.0f;
  if (!empty && !broken) {
    const std::int64_t pieces_per_state = args.num_rows * args.pieces_per_row;
    const auto* v = static_cast<const PieceT*>(args.call.v) + thread;
    for (int first = 0; first < num_states; first += kStatesInFlight) {
      float weights[kStatesInFlight];
      PieceT pieces[kStatesInFlight];
#pragma unroll
      for (int i = 0; i < kStatesInFlight; ++i) {
        const int s = first + i;
        const float x = s < num_states ? __ldg(lse + s * args.num_rows) : -INFINITY;
        weights[i] = expf(x - max_lse);
        // An empty state's v may hold anything.
        if (x > -INFINITY) {
          pieces[i] = v[s * pieces_per_state];
        } else {
#pragma unroll
          for (int c = 0; c < kPiece; ++c) pieces[i].x[c] = narrow<Element>(0.0f);
        }
      }
#pragma unroll
      for (int i = 0; i < kStatesInFlight; ++i) {
        sum += weights[i];
#pragma unroll
        for (int c = 0; c < kPiece; ++c) o[c] = fmaf(weights[i], widen(pieces[i].x[c]), o[c]);
      }
    }
  }
  const float factor = broken ? NAN : (empty ? 0.0f : 1.0f / sum);
  PieceT result;
#pragma unroll
  for (int c = 0; c < kPiece; ++c) result.x[c] = narrow<Element>(o[c] * factor);
  static_cast<PieceT*>(args.call.o)[thread] = result;
  if (args.call.lse_out != nullptr && thread == row * args.pieces_per_row) {
    args.call.lse_out[row] = broken ? NAN : (empty ? -INFINITY : max_lse + logf(sum));
  }
}

template <typename Element>
void launch(const MergeArgs& args) {
  constexpr int kWidePiece = 16 / static_cast<int>(sizeof(Element));
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  const bool wide = args.head_dim % kWidePiece == 0 && is_aligned(args.v) && is_aligned(args.o);
  MergeKernelArgs kernel_args{.call = args,
                              .num_rows = args.num_rows * args.num_heads,
                              .pieces_per_row = wide ? args.head_dim / kWidePiece : args.head_dim};
  const std::int64_t num_blocks =
      (kernel_args.num_rows * kernel_args.pieces_per_row + kThreads - 1) / kThreads;
  if (num_blocks > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::kInvalidArgument, "o: " + std::to_string(kernel_args.num_rows) +
                                                 " rows of " + std::to_string(args.head_dim) +
                                                 " elements need " + std::to_string(num_blocks) +
                                                 " thread blocks, at most 2147483647 are allowed");
  }
  const DeviceScope scope(args.device_index);
  void* parameters[] = {&kernel_args};
  const void* function = wide ? reinterpret_cast<const void*>(&merge_rows<Element, kWidePiece>)
                              : reinterpret_cast<const void*>(&merge_rows<Element, 1>);
  check(cudaLaunchKernel(function, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                         parameters, 0, static_cast<cudaStream_t>(args.stream)),
        "merge_states launch");
}

}  // namespace

void merge_states(const MergeArgs& args) {
  if (args.num_rows == 0 || args.num_heads == 0 || args.head_dim == 0) return;
  switch (args.dtype) {
    case DType::kF32: return launch<float>(args);
    case DType::kF16: return launch<__half>(args);
    default: return launch<__nv_bfloat16>(args);
  }
}

}  // namespace foscar::cuda
