// The header of a safetensors file: 8 bytes of little-endian length, then that many bytes of JSON,
// then the data.
//
//     u64 N | { "__metadata__": {"key": "text", ...},
//               "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ... } |
//               data
//
// Offsets count from the start of the data. A header that parse_header() returns is proven: no name
// twice, every tensor's bytes equal shape times element size, and the tensors cover the data
// exactly, without holes or overlaps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foscar/dtype.h"

namespace foscar::io {

struct TensorInfo {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16"
  std::optional<DType> dtype;  // empty: a legal safetensors type that this project does not use
  std::vector<std::int64_t> shape;  // elements
  std::int64_t begin = 0;           // bytes from the start of the data
  std::int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorInfo> tensors;
};

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

// "BF16" for kBF16.
std::string_view safetensors_dtype_name(DType dtype);

// Parses `json`, the header of a file with `data_bytes` bytes after it. Throws Error{kFile}; `path`
// is for the message only.
SafetensorsHeader parse_header(const std::string& path, std::string_view json,
                               std::int64_t data_bytes);

}  // namespace foscar::io
