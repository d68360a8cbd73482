#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foscar::bench {
namespace {

// K and V rows of request 0 as FP32 [kv_len, num_kv_heads, head_dim].
void read_rows(Problem& problem, const LowBitCache* cache, std::vector<float>& k,
               std::vector<float>& v) {
  const Shape& s = problem.shape;
  const std::size_t row = static_cast<std::size_t>(s.num_kv_heads) * s.head_dim;
  k.resize(row * static_cast<std::size_t>(s.kv_len));
  v.resize(k.size());
  if (cache != nullptr) {
    PagedKvCache view = cache->view;
    view.table.block_table =
        Tensor::contiguous(problem.block_table.data(), DType::kI32, {1, s.pages_per_request()});
    view.table.kv_len = Tensor::contiguous(problem.kv_len.data(), DType::kI32, {1});
    const auto tensor = [&](std::vector<float>& x) {
      return Tensor::contiguous(x.data(), DType::kF32, {1, s.kv_len, s.num_kv_heads, s.head_dim});
    };
    dequantize(view, tensor(k), tensor(v));
    return;
  }
  for (auto [buffer, out] : {std::pair{&problem.dense_k, &k}, std::pair{&problem.dense_v, &v}}) {
    const auto* data = reinterpret_cast<const std::uint16_t*>(buffer->get());
    for (int t = 0; t < s.kv_len; ++t) {
      const std::size_t page =
          static_cast<std::size_t>(problem.block_table[static_cast<std::size_t>(t / s.page_size)]);
      for (int h = 0; h < s.num_kv_heads; ++h) {
        const std::size_t source =
            ((page * s.num_kv_heads + h) * s.page_size + t % s.page_size) * s.head_dim;
        for (int c = 0; c < s.head_dim; ++c) {
          (*out)[static_cast<std::size_t>(t) * row + static_cast<std::size_t>(h * s.head_dim + c)] =
              bf16_to_float(data[source + c]);
        }
      }
    }
  }
}

std::vector<double> attend(Problem& problem, const LowBitCache* cache) {
  const Shape& s = problem.shape;
  std::vector<float> k, v;
  read_rows(problem, cache, k, v);
  const std::size_t row = static_cast<std::size_t>(s.num_kv_heads) * s.head_dim;
  const int gqa = s.num_qo_heads / s.num_kv_heads;
  std::vector<double> out(static_cast<std::size_t>(s.num_qo_heads) * s.head_dim);
  std::vector<double> p(static_cast<std::size_t>(s.kv_len));
  for (int h = 0; h < s.num_qo_heads; ++h) {
    const std::size_t head = static_cast<std::size_t>(h / gqa) * s.head_dim;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < p.size(); ++t) {
      double dot = 0;
      for (int c = 0; c < s.head_dim; ++c) {
        dot += static_cast<double>(
                   bf16_to_float(problem.q[static_cast<std::size_t>(h * s.head_dim + c)])) *
               k[t * row + head + c];
      }
      p[t] = dot / std::sqrt(static_cast<double>(s.head_dim));
      largest = std::max(largest, p[t]);
    }
    double sum = 0;
    double* o = out.data() + static_cast<std::size_t>(h) * s.head_dim;
    for (std::size_t t = 0; t < p.size(); ++t) {
      const double weight = std::exp(p[t] - largest);
      sum += weight;
      for (int c = 0; c < s.head_dim; ++c) o[c] += weight * v[t * row + head + c];
    }
    for (int c = 0; c < s.head_dim; ++c) o[c] /= sum;
  }
  return out;
}

}  // namespace

double relative_error(Problem& problem, const LowBitCache* cache, std::vector<double>& reference) {
  if (reference.empty()) reference = attend(problem, cache);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    difference += (problem.o[i] - reference[i]) * (problem.o[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace foscar::bench
