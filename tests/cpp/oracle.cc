// See oracle.h.
#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace foscar::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// FP16 and BF16 by their definition, not by the library's bit manipulation.
double decode_16bit(std::uint16_t bits, bool is_half) {
  const int mantissa_bits = is_half ? 10 : 7, exponent_bits = is_half ? 5 : 8;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

double read_param(const std::uint8_t* bytes, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  return decode_16bit(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8), dtype == DType::kF16);
}

// Whether new token i of request b sees key t: in words, not by the library's intervals.
bool oracle_sees(const Geometry& g, const RunOptions& options, int b, int i, int t) {
  const int position = g.kv_lens[static_cast<std::size_t>(b)] - g.qo_len + i;
  const int distance = position - t;  // keys back from the current one
  if (options.window_left >= 0 && distance > options.window_left) return false;
  if (options.mask.empty()) return !options.causal || distance >= 0;
  const int j = i - distance;  // index of key t among the new tokens
  const auto rows = static_cast<std::size_t>(g.qo_len);
  const bool shared = options.mask.size() == rows * rows;
  const std::size_t row =
      (shared ? 0 : static_cast<std::size_t>(b) * rows) + static_cast<std::size_t>(i);
  return j < 0 || options.mask[row * rows + static_cast<std::size_t>(j)] != 0;
}

const std::uint8_t* token_block(const HostCache& cache, int b, int head, int t) {
  return cache.block(
      cache.pages[static_cast<std::size_t>(b)][static_cast<std::size_t>(t / cache.g.page_size)],
      head);
}

}  // namespace

int oracle_code(const HostCache& cache, bool is_v, int b, int head, int t, int channel) {
  const Geometry& g = cache.g;
  const int k_row = g.head_dim * g.format.k.bits / 8;
  const int bits = is_v ? g.format.v.bits : g.format.k.bits;
  const int row = g.head_dim * bits / 8;  // bytes; whole chunks of 16 at every supported head_dim
  const int byte = channel % row;
  const int slot = t % g.page_size;
  const int offset =
      (is_v ? g.page_size * k_row : 0) + (byte / 16 * g.page_size + slot) * 16 + byte % 16;
  return token_block(cache, b, head, t)[offset] >> (channel / row * bits) & ((1 << bits) - 1);
}

double oracle_value(const HostCache& cache, bool is_v, int b, int head, int t, int channel) {
  const Geometry& g = cache.g;
  const int width = g.format.param_dtype == DType::kF32 ? 4 : 2;
  const int k_groups = g.head_dim / g.format.k.group_size,
            v_groups = g.head_dim / g.format.v.group_size;
  const int plane = g.page_size * g.head_dim * (g.format.k.bits + g.format.v.bits) / 8;
  const int group =
      is_v ? k_groups + channel / g.format.v.group_size : channel / g.format.k.group_size;
  const int slot = t % g.page_size;
  const std::uint8_t* pair =
      token_block(cache, b, head, t) + plane + (slot * (k_groups + v_groups) + group) * 2 * width;
  return read_param(pair, g.format.param_dtype) * oracle_code(cache, is_v, b, head, t, channel) +
         read_param(pair + width, g.format.param_dtype);
}

Oracle oracle_decode(const HostCache& cache, const std::vector<float>& q,
                     const RunOptions& options) {
  return oracle_attention(
      cache.g,
      [&](bool is_v, int b, int head, int t, int c) {
        return oracle_value(cache, is_v, b, head, t, c);
      },
      q, options);
}

Oracle oracle_attention(const Geometry& g, const ValueFn& value, const std::vector<float>& q,
                        const RunOptions& options) {
  const auto dim = static_cast<std::size_t>(g.head_dim);
  Oracle out{std::vector<double>(q.size(), 0.0),
             std::vector<double>(q.size() / dim, -std::numeric_limits<double>::infinity()), 0};
  const double sm_scale = options.sm_scale != 0.0 ? options.sm_scale : 1.0 / std::sqrt(g.head_dim);
  for (int b = 0; b < g.batch_size(); ++b) {
    const int kv_len = g.kv_lens[static_cast<std::size_t>(b)];
    for (int kv_head = 0; kv_head < g.num_kv_heads; ++kv_head) {
      std::vector<double> k(static_cast<std::size_t>(kv_len) * dim), v(k.size());
      for (int t = 0; t < kv_len; ++t) {
        for (int c = 0; c < g.head_dim; ++c) {
          k[static_cast<std::size_t>(t) * dim + static_cast<std::size_t>(c)] =
              value(false, b, kv_head, t, c);
          v[static_cast<std::size_t>(t) * dim + static_cast<std::size_t>(c)] =
              value(true, b, kv_head, t, c);
        }
      }
      for (int i = 0; i < g.qo_len; ++i) {
        for (int h = kv_head * g.gqa_group_size(); h < (kv_head + 1) * g.gqa_group_size(); ++h) {
          const std::size_t row = (static_cast<std::size_t>(b) * g.qo_len + i) * g.num_qo_heads + h;
          std::vector<int> tokens;
          std::vector<double> logits;
          for (int t = 0; t < kv_len; ++t) {
            if (!oracle_sees(g, options, b, i, t)) continue;
            double dot = 0;
            for (std::size_t c = 0; c < dim; ++c)
              dot += q[row * dim + c] * k[static_cast<std::size_t>(t) * dim + c];
            tokens.push_back(t);
            const double logit = sm_scale * dot;
            out.max_logit = std::max(out.max_logit, std::abs(logit));
            logits.push_back(options.soft_cap > 0
                                 ? options.soft_cap * std::tanh(logit / options.soft_cap)
                                 : logit);
          }
          // The sink: a logit without a value.
          if (!options.sinks.empty()) logits.push_back(options.sinks[static_cast<std::size_t>(h)]);
          if (logits.empty()) continue;
          const double max = *std::max_element(logits.begin(), logits.end());
          if (max == -kInfinity) continue;  // a sink that is none, and nothing else
          double sum = 0;
          for (double logit : logits) sum += std::exp(logit - max);
          for (std::size_t n = 0; n < tokens.size(); ++n) {
            const double p = std::exp(logits[n] - max) / sum;
            for (std::size_t c = 0; c < dim; ++c)
              out.o[row * dim + c] += p * v[static_cast<std::size_t>(tokens[n]) * dim + c];
          }
          out.lse[row] = max + std::log(sum);
        }
      }
    }
  }
  return out;
}

Tolerance tolerance(const TestBackend& backend, DType o_dtype, double max_logit) {
  // Unit roundoff of the output type, which bounds the relative error of each element's rounding.
  const double rounding =
      o_dtype == DType::kF32 ? 0x1p-24 : (o_dtype == DType::kF16 ? 0x1p-11 : 0x1p-8);
  if (backend.is_reference()) return {(4 + max_logit) * 0x1p-24 + rounding, 4 * 0x1p-24};
  const double growth = std::max(1.0, max_logit / 64);
  if (backend.is_cuda()) return {3e-3 * growth, 1e-4};
  return {5e-4 * growth + rounding, 1e-4};
}

void expect_matches(const Result& result, const Oracle& oracle, const Tolerance& tolerance,
                    const Geometry& g) {
  const auto dim = static_cast<std::size_t>(g.head_dim);
  ASSERT_EQ(result.o.size(), oracle.o.size());
  ASSERT_EQ(result.lse.size(), oracle.lse.size());
  double all_error = 0, all_norm = 0, worst = 0;
  std::size_t worst_row = 0;
  for (std::size_t row = 0; row < oracle.lse.size(); ++row) {
    double error = 0, norm = 0;
    for (std::size_t c = row * dim; c < (row + 1) * dim; ++c) {
      const double difference = result.o[c] - oracle.o[c];
      error += difference * difference;
      norm += oracle.o[c] * oracle.o[c];
    }
    all_error += error;
    all_norm += norm;
    if (norm == 0) {
      EXPECT_EQ(error, 0) << "row " << row << " must be exactly 0: " << g.text();
    } else {
      const double relative = std::isnan(error) ? kInfinity : std::sqrt(error / norm);
      if (relative > worst) worst_row = row;
      worst = std::max(worst, relative);
    }
    const double want = oracle.lse[row], got = result.lse[row];
    if (std::isinf(want)) {
      EXPECT_EQ(got, want) << "lse of row " << row << ": " << g.text();
    } else {
      EXPECT_LE(std::abs(got - want), tolerance.lse * std::max(1.0, std::abs(want)))
          << "lse of row " << row << " is " << got << ", right is " << want << ": " << g.text();
    }
  }
  EXPECT_LE(worst, 2 * tolerance.o)
      << "relative error of row " << worst_row << " (request "
      << worst_row / static_cast<std::size_t>(g.num_qo_heads * g.qo_len) << "), o[0] "
      << result.o[worst_row * dim] << " for " << oracle.o[worst_row * dim] << ": " << g.text();
  if (all_norm > 0) {
    EXPECT_LE(std::sqrt(all_error / all_norm), tolerance.o) << g.text();
  }
}

void expect_right(const TestBackend& backend, const HostCache& cache, const std::vector<float>& q,
                  const RunOptions& options) {
  const Oracle oracle = oracle_decode(cache, q, options);
  expect_matches(run_decode(backend, cache, q, options), oracle,
                 tolerance(backend, output_dtype(backend, cache.g, options), oracle.max_logit),
                 cache.g);
}

}  // namespace foscar::test
