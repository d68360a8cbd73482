// Reading safetensors. The header is checked when the file is opened; data is read tensor by
// tensor, with plain reads and not through a mapping, so that a file that shrinks meanwhile is an
// error and not a signal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/safetensors_header.h"

namespace foscar::io {

class SafetensorsReader {
 public:
  // Throws Error{kFile} for anything that is not a regular, readable, consistent safetensors file.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }

  // The tensor, or null.
  const TensorInfo* find(const std::string& name) const;
  // The tensor; throws Error{kFile} listing the names that exist. `shape_hint` describes what is
  // expected, for example "[batch, num_qo_heads, head_dim]".
  const TensorInfo& get(const std::string& name, const std::string& shape_hint) const;

  // The tensor's info.bytes bytes. A tensor that this machine's memory cannot hold is an
  // Error{kFile} too: a sparse file can claim any size.
  std::vector<std::uint8_t> read(const TensorInfo& info) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t data_start_ = 0;  // bytes from the start of the file
  SafetensorsHeader header_;
};

}  // namespace foscar::io
