// Inputs that no file holds: generated ones, and files stretched to longer contexts.
#include <charconv>
#include <cmath>
#include <random>

#include "foscar/error.h"
#include "io/machine_memory.h"
#include "kv_input.h"

namespace foscar::tool {
namespace {

constexpr std::uint32_t kSeed = 20260101;

// Throws unless `elements` keys and values fit this machine. At its peak `foscar run` holds each of
// them in BF16 rows and pages, in the copies that fill these, and in FP32 for the oracle.
void require_memory(const std::string& option, const std::string& got, std::int64_t elements) {
  constexpr std::int64_t kBytesPerElement = 24;
  const std::int64_t memory = io::machine_memory_bytes();
  if (elements <= memory / kBytesPerElement) return;
  throw Error(ErrorKind::kInvalidArgument,
              option + ": got '" + got + "', " + std::to_string(elements) +
                  " keys and values, expected at most " +
                  std::to_string(memory / kBytesPerElement) + " with this machine's memory of " +
                  std::to_string(memory) + " bytes");
}

// Gaussian values around a mean per (head, channel); means are Gaussian too, `mean_sigma` wide.
void fill_rows(HostTensor& tensor, float mean_sigma, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const std::size_t rank = tensor.shape.size();
  const std::int64_t row = tensor.shape[rank - 2] * tensor.shape[rank - 1];
  std::vector<float> means(static_cast<std::size_t>(row));
  for (float& mean : means) mean = mean_sigma * normal(random);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.set(i, means[static_cast<std::size_t>(i % row)] + normal(random));
  }
}

double root_mean_square(const HostTensor& tensor) {
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const double value = tensor.at(i);
    if (std::isfinite(value)) sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(tensor.numel()));
}

HostTensor extend_rows(const HostTensor& rows, const std::vector<std::int32_t>& lengths,
                       std::int64_t kv_len, std::mt19937& random) {
  const std::int64_t row = rows.shape[2] * rows.shape[3];
  HostTensor result =
      HostTensor::filled(rows.dtype, {rows.shape[0], kv_len, rows.shape[2], rows.shape[3]});
  std::normal_distribution<float> noise(0.0f, static_cast<float>(0.1 * root_mean_square(rows)));
  for (std::int64_t b = 0; b < rows.shape[0]; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    if (length == 0) continue;
    for (std::int64_t t = 0; t < kv_len; ++t) {
      const std::int64_t source = (b * rows.shape[1] + t % length) * row;
      const std::int64_t target = (b * kv_len + t) * row;
      for (std::int64_t c = 0; c < row; ++c) {
        const float moved = t < length ? 0.0f : noise(random);
        result.set(target + c, rows.at(source + c) + moved);
      }
    }
  }
  return result;
}

}  // namespace

KvInput generate_kv_input(const std::string& shape) {
  constexpr std::string_view kSeparators = "xx/x";  // between the five numbers
  constexpr std::int64_t kLargest = 1 << 24;
  std::int64_t numbers[5] = {};
  const char* at = shape.data();
  const char* const end = at + shape.size();
  bool ok = true;
  for (std::size_t i = 0; ok && i < 5; ++i) {
    if (i > 0) ok = at != end && *at++ == kSeparators[i - 1];
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    ok = ok && error == std::errc{} && numbers[i] >= 1 && numbers[i] <= kLargest;
    at = next;
  }
  const auto [batch_size, kv_len, num_qo_heads, num_kv_heads, head_dim] = numbers;
  std::int64_t elements = batch_size * kv_len;
  ok = ok && at == end && num_qo_heads % num_kv_heads == 0 &&
       !__builtin_mul_overflow(elements, num_kv_heads * head_dim, &elements) &&
       elements <= std::int64_t{1} << 36;
  if (!ok) {
    throw Error(ErrorKind::kInvalidArgument,
                "--synthetic: got '" + shape.substr(0, 80) +
                    "', expected BATCHxLENxHQ/HKVxD with HQ a multiple of HKV and at "
                    "most 2^36 values, for example 1x32768x32/8x128");
  }
  require_memory("--synthetic", shape.substr(0, 80),
                 2 * elements + batch_size * num_qo_heads * head_dim);
  std::mt19937 random(kSeed);
  KvInput input;
  input.q = HostTensor::filled(DType::kBF16, {batch_size, num_qo_heads, head_dim});
  input.k = HostTensor::filled(DType::kBF16, {batch_size, kv_len, num_kv_heads, head_dim});
  input.v = HostTensor::filled(DType::kBF16, {batch_size, kv_len, num_kv_heads, head_dim});
  input.kv_len.assign(static_cast<std::size_t>(batch_size), static_cast<std::int32_t>(kv_len));
  fill_rows(input.q, 0.0f, random);
  fill_rows(input.k, 2.0f, random);
  fill_rows(input.v, 0.5f, random);
  return input;
}

KvInput extend_kv_input(const KvInput& input, std::int64_t kv_len) {
  if (kv_len < input.max_kv_len()) {
    throw Error(ErrorKind::kInvalidArgument, "--extend-to: got " + std::to_string(kv_len) +
                                                 ", expected at least the input's " +
                                                 std::to_string(input.max_kv_len()) + " tokens");
  }
  require_memory("--extend-to", std::to_string(kv_len),
                 2 * (input.k.numel() / input.max_kv_len() * kv_len));
  std::mt19937 random(kSeed);
  KvInput result;
  result.q = input.q;
  result.k = extend_rows(input.k, input.kv_len, kv_len, random);
  result.v = extend_rows(input.v, input.kv_len, kv_len, random);
  for (const std::int32_t length : input.kv_len) {
    result.kv_len.push_back(length == 0 ? 0 : static_cast<std::int32_t>(kv_len));
  }
  return result;
}

}  // namespace foscar::tool
