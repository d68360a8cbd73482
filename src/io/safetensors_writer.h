// Writing safetensors.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "foscar/dtype.h"

namespace foscar::io {

// A contiguous host tensor under a name.
struct NamedTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;  // elements
  const void* data;
};

// Writes the tensors in this order. The file appears under its name only when it is complete; on
// Error{kFile} nothing is left behind and an older file of that name is untouched.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace foscar::io
