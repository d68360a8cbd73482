// rotate_rows for some rows of one head: a fast Walsh-Hadamard transform per block, or a product with the matrix, whose
// rows are read once for kRotateRows rows of x.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

#include "dispatch/backend.h"

namespace foscar::cpu {

inline constexpr int kRotateRows = 4;

// In place, `order` values: log2(order) stages of sums and differences, then the scale. A template only so that each
// instruction set has its own copy.
template <typename Isa>
void hadamard_block(float* x, int order) {
  for (int half = 1; half < order; half *= 2) {
    for (int begin = 0; begin < order; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(order)));
  for (int i = 0; i < order; ++i) x[i] *= scale;
}

// y[r] = x[r] R for kRotateRows rows of `dim` values each; r is FP32 [dim, dim]. Sums run over i in order, so that the
// result of a row does not depend on its neighbours.
template <typename Isa>
void multiply_rows(const float* x, const float* r, int dim, float* y) {
  int j = 0;
  for (; j + Isa::kLanes <= dim; j += Isa::kLanes) {
    typename Isa::F sum[kRotateRows];
    for (auto& s : sum) s = Isa::set(0.0f);
    for (int i = 0; i < dim; ++i) {
      const typename Isa::F row = Isa::load(r + static_cast<std::ptrdiff_t>(i) * dim + j);
      for (int k = 0; k < kRotateRows; ++k)
        sum[k] = Isa::fma(Isa::set(x[k * dim + i]), row, sum[k]);
    }
    for (int k = 0; k < kRotateRows; ++k) Isa::store(y + k * dim + j, sum[k]);
  }
  for (; j < dim; ++j) {
    for (int k = 0; k < kRotateRows; ++k) {
      float sum = 0;
      for (int i = 0; i < dim; ++i)
        sum += x[k * dim + i] * r[static_cast<std::ptrdiff_t>(i) * dim + j];
      y[k * dim + j] = sum;
    }
  }
}

// x, y: [kRotateRows, head_dim] FP32, y is scratch; returns the one that holds the result. `matrix` is the
// head's, FP32 [head_dim, head_dim], or null.
template <typename Isa>
float* rotate_block(const RotateArgs& args, const float* matrix, float* x, float* y) {
  const int dim = args.head_dim;
  if (matrix != nullptr) {
    multiply_rows<Isa>(x, matrix, dim, y);
    std::swap(x, y);
  } else if (args.hadamard_order > 1) {
    for (int begin = 0; begin < kRotateRows * dim; begin += args.hadamard_order) {
      hadamard_block<Isa>(x + begin, args.hadamard_order);
    }
  }
  return x;
}

}  // namespace foscar::cpu
