#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "io/partial_file.h"
#include "io/safetensors_header.h"

namespace foscar::io {
namespace {

std::int64_t byte_count(const NamedTensor& tensor) {
  std::int64_t bytes = dtype_bytes(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

std::string header_text(std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t begin = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::int64_t end = begin + byte_count(tensor);
    header[tensor.name] = {{"dtype", safetensors_dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts 8-byte aligned
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(tensors, metadata);
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));

  PartialFile file(path);
  file.write(length, sizeof length);
  file.write(header.data(), header.size());
  for (const NamedTensor& tensor : tensors) {
    file.write(tensor.data, static_cast<std::size_t>(byte_count(tensor)));
  }
  file.commit();
}

}  // namespace foscar::io
