#include "kv_input.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "io/file_error.h"
#include "io/safetensors_reader.h"

namespace foscar::tool {
namespace {

using io::SafetensorsReader;
using io::TensorInfo;

constexpr const char* kQueryHint = "[batch, num_qo_heads, head_dim], BF16, F16 or F32";
constexpr const char* kRowsHint = "[batch, kv_len, num_kv_heads, head_dim], BF16, F16 or F32";

std::string found_tensor(const TensorInfo& info) {
  return info.dtype_name + " " + io::shape_text(info.shape);
}

// A floating-point tensor of this rank with extents from 1 to 2^31 - 1.
const TensorInfo& expect_floats(const SafetensorsReader& reader, const std::string& name,
                                std::size_t rank, const std::string& hint) {
  const TensorInfo& info = reader.get(name, hint);
  const bool is_float =
      info.dtype == DType::kBF16 || info.dtype == DType::kF16 || info.dtype == DType::kF32;
  if (!is_float || info.shape.size() != rank) {
    io::reject_file(reader.path(), io::tensor_part(name), found_tensor(info), hint);
  }
  for (const std::int64_t extent : info.shape) {
    if (extent < 1 || extent > std::numeric_limits<std::int32_t>::max()) {
      io::reject_file(reader.path(), io::tensor_part(name), found_tensor(info),
                      hint + " with extents from 1 to 2^31 - 1");
    }
  }
  return info;
}

HostTensor read_tensor(const SafetensorsReader& reader, const TensorInfo& info) {
  return {*info.dtype, info.shape, reader.read(info)};
}

std::vector<std::int32_t> read_lengths(const SafetensorsReader& reader, std::int64_t batch_size,
                                       std::int64_t max_kv_len) {
  const TensorInfo* info = reader.find("kv_len");
  if (info == nullptr) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(batch_size),
                                     static_cast<std::int32_t>(max_kv_len));
  }
  if (info->dtype != DType::kI32 || info->shape != std::vector<std::int64_t>{batch_size}) {
    io::reject_file(reader.path(), io::tensor_part(info->name), found_tensor(*info),
                    "I32 " + io::shape_text(std::vector<std::int64_t>{batch_size}) +
                        ", one length per request");
  }
  const std::vector<std::uint8_t> bytes = reader.read(*info);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch_size));
  std::memcpy(lengths.data(), bytes.data(), bytes.size());
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 0 || lengths[b] > max_kv_len) {
      io::reject_file(reader.path(), io::tensor_part(info->name),
                      std::to_string(lengths[b]) + " at [" + std::to_string(b) + "]",
                      "0 to " + std::to_string(max_kv_len) + ", the tokens of k");
    }
  }
  return lengths;
}

// Every element of the first lengths[b] rows of each request must be finite; rows beyond may hold
// anything.
void check_finite(const SafetensorsReader& reader, const std::string& name,
                  const HostTensor& tensor, const std::vector<std::int32_t>* lengths) {
  const std::int64_t batch_elements = tensor.numel() / tensor.shape[0];
  for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
    const std::int64_t elements = lengths == nullptr ? batch_elements
                                                     : batch_elements / tensor.shape[1] *
                                                           (*lengths)[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < elements; ++i) {
      const float value = tensor.at(b * batch_elements + i);
      if (std::isfinite(value)) continue;
      std::vector<std::int64_t> index(tensor.shape.size());
      std::int64_t rest = b * batch_elements + i;
      for (std::size_t d = index.size(); d-- > 0; rest /= tensor.shape[d])
        index[d] = rest % tensor.shape[d];
      io::reject_file(
          reader.path(), io::tensor_part(name),
          std::string(std::isnan(value) ? "NaN" : "infinity") + " at " + io::shape_text(index),
          "finite numbers");
    }
  }
}

}  // namespace

std::int64_t KvInput::num_tokens() const {
  return std::accumulate(kv_len.begin(), kv_len.end(), std::int64_t{0});
}

KvInput load_kv_input(const std::string& path, QueryUse query) {
  const SafetensorsReader reader(path);
  const TensorInfo& k = expect_floats(reader, "k", 4, kRowsHint);
  const TensorInfo& v = expect_floats(reader, "v", 4, kRowsHint);
  if (v.shape != k.shape) {
    io::reject_file(path, io::tensor_part("v"), found_tensor(v),
                    "the shape of k, " + io::shape_text(k.shape));
  }
  KvInput input;
  input.kv_len = read_lengths(reader, k.shape[0], k.shape[1]);
  if (query == QueryUse::kRequired) {
    const TensorInfo& q = expect_floats(reader, "q", 3, kQueryHint);
    if (q.shape[0] != k.shape[0] || q.shape[2] != k.shape[3] || q.shape[1] % k.shape[2] != 0) {
      io::reject_file(path, io::tensor_part("q"), found_tensor(q),
                      "[" + std::to_string(k.shape[0]) + ", a multiple of " +
                          std::to_string(k.shape[2]) + ", " + std::to_string(k.shape[3]) +
                          "] to fit k " + io::shape_text(k.shape));
    }
    input.q = read_tensor(reader, q);
    check_finite(reader, "q", input.q, nullptr);
  }
  input.k = read_tensor(reader, k);
  input.v = read_tensor(reader, v);
  check_finite(reader, "k", input.k, &input.kv_len);
  check_finite(reader, "v", input.v, &input.kv_len);
  return input;
}

}  // namespace foscar::tool
