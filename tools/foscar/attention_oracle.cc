#include "attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foscar::tool {

OracleOutput attend(const OracleInput& in) {
  const auto head_dim = static_cast<std::size_t>(in.head_dim);
  const auto num_qo_heads = static_cast<std::size_t>(in.num_qo_heads);
  const auto num_kv_heads = static_cast<std::size_t>(in.num_kv_heads);
  const std::size_t gqa_group_size = num_qo_heads / num_kv_heads;
  OracleOutput out;
  out.o.assign(in.q.size(), 0.0);
  out.lse.assign(static_cast<std::size_t>(in.batch_size) * num_qo_heads,
                 -std::numeric_limits<double>::infinity());

  std::vector<double> weights;
  for (std::size_t b = 0; b < static_cast<std::size_t>(in.batch_size); ++b) {
    const auto length = static_cast<std::size_t>(in.kv_len[b]);
    if (length == 0) continue;
    for (std::size_t h = 0; h < num_qo_heads; ++h) {
      const std::size_t row = b * num_qo_heads + h;
      const float* q = &in.q[row * head_dim];
      const auto kv_row = [&](std::span<const float> rows, std::size_t t) {
        const std::size_t token = b * static_cast<std::size_t>(in.max_kv_len) + t;
        return &rows[(token * num_kv_heads + h / gqa_group_size) * head_dim];
      };
      weights.assign(length, 0.0);
      for (std::size_t t = 0; t < length; ++t) {
        const float* k = kv_row(in.k, t);
        double dot = 0;
        for (std::size_t c = 0; c < head_dim; ++c) dot += double{q[c]} * double{k[c]};
        weights[t] = in.sm_scale * dot;
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      double* o = &out.o[row * head_dim];
      for (std::size_t t = 0; t < length; ++t) {
        const float* v = kv_row(in.v, t);
        for (std::size_t c = 0; c < head_dim; ++c) o[c] += weights[t] / sum * double{v[c]};
      }
      out.lse[row] = largest + std::log(sum);
    }
  }
  return out;
}

double relative_error(std::span<const float> measured, std::span<const double> expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (measured[i] - expected[i]) * (measured[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

}  // namespace foscar::tool
