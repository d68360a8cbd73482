#include "io/safetensors_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/file_error.h"
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

// A file that deletes itself unless it is committed.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path) : path_(path), partial_(path + ".partial") {
    // The file takes the name's place; a device or a pipe of that name must not be lost to it.
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      reject_file(path, "file", S_ISDIR(status.st_mode) ? "a directory" : "no regular file",
                  "a place that can be written");
    }
    file_ = std::fopen(partial_.c_str(), "wb");
    if (file_ == nullptr) fail();
  }
  ~PartialFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!committed_) ::unlink(partial_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) fail();
  }
  void commit() {
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail();
    if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail();
    committed_ = true;
  }

 private:
  [[noreturn]] void fail() const {
    reject_file(path_, "file", std::strerror(errno), "a place that can be written");
  }

  std::string path_;
  std::string partial_;
  std::FILE* file_ = nullptr;
  bool committed_ = false;
};

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
