// Attention in double precision, one obvious loop per term: what the measured output is compared
// with.
//
//     o = sum_t softmax_t(sm_scale * q . k_t) v_t
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foscar::tool {

struct OracleInput {
  std::int64_t batch_size;
  std::int64_t max_kv_len;
  int num_qo_heads;
  int num_kv_heads;
  int head_dim;
  std::span<const float> q;              // [batch_size, num_qo_heads, head_dim]
  std::span<const float> k;              // [batch_size, max_kv_len, num_kv_heads, head_dim]
  std::span<const float> v;              // like k
  std::span<const std::int32_t> kv_len;  // [batch_size], tokens
  double sm_scale;
};

struct OracleOutput {
  std::vector<double> o;    // [batch_size, num_qo_heads, head_dim]; 0 for an empty request
  std::vector<double> lse;  // [batch_size, num_qo_heads], natural log; -inf for an empty request
};

OracleOutput attend(const OracleInput& input);

// |measured - expected| / |expected| over all elements (Euclidean norms): 0 when both are zero,
// infinite when only `expected` is.
double relative_error(std::span<const float> measured, std::span<const double> expected);

}  // namespace foscar::tool
