// The tests' own attention, in double, from the bytes of the pages. It shares no code with the
// library: codes and parameters are located by the arithmetic of docs/format.md, written out again.
#pragma once

#include "run.h"

namespace foscar::test {

// Code and value of (token t of request b, head, channel).
int oracle_code(const HostCache& cache, bool is_v, int b, int head, int t, int channel);
double oracle_value(const HostCache& cache, bool is_v, int b, int head, int t, int channel);

struct Oracle {
  std::vector<double> o;    // [batch, qo_len, num_qo_heads, head_dim]
  std::vector<double> lse;  // [batch, qo_len, num_qo_heads]
  double max_logit = 0;     // largest |logit| that took part
};
// Attention over value(is_v, request, KV head, token, channel).
using ValueFn = std::function<double(bool is_v, int b, int head, int t, int channel)>;
Oracle oracle_attention(const Geometry& g, const ValueFn& value, const std::vector<float>& q,
                        const RunOptions& options);
Oracle oracle_decode(const HostCache& cache, const std::vector<float>& q,
                     const RunOptions& options = {});

// Bounds on the error of one result, relative to the oracle.
struct Tolerance {
  double o;    // norm of the difference / norm, over everything; twice that for each single row
  double lse;  // absolute, or relative where |lse| > 1
};
// Output rounding plus what the backend's arithmetic may add:
//   reference   (4 + max_logit) * 2^-24: FP32 rounding of a double result, and of sm_scale
//   cpu-*       5e-4 * max(1, max_logit / 64)
//   cuda*       3e-3 * max(1, max_logit / 64) with the 16-bit output's rounding
// A relative error in the logits is an absolute one in the exponent, so bounds grow with the logits
// once these are larger than any that a trained model produces.
Tolerance tolerance(const TestBackend& backend, DType o_dtype, double max_logit = 0);

// Compares, with a message that names the worst row.
void expect_matches(const Result& result, const Oracle& oracle, const Tolerance& tolerance,
                    const Geometry& g);
// run_decode and oracle_decode and expect_matches.
void expect_right(const TestBackend& backend, const HostCache& cache, const std::vector<float>& q,
                  const RunOptions& options = {});

}  // namespace foscar::test
