#include "io/safetensors_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/file_error.h"
#include "io/machine_memory.h"

namespace foscar::io {
namespace {

constexpr std::int64_t kLengthBytes = 8;

// Reads exactly `bytes` bytes at `position`; `part` names what is being read.
void read_exactly(int descriptor, const std::string& path, const std::string& part,
                  std::int64_t position, void* destination, std::int64_t bytes) {
  constexpr std::int64_t kMaxBytesPerCall = 1 << 30;
  auto* target = static_cast<char*>(destination);
  std::int64_t done = 0;
  while (done < bytes) {
    const auto wanted = static_cast<std::size_t>(std::min(bytes - done, kMaxBytesPerCall));
    const ssize_t got = ::pread(descriptor, target + done, wanted, position + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) reject_file(path, part, std::strerror(errno), "readable data");
    if (got == 0) {
      reject_file(path, part, "the end of the file after " + std::to_string(done) + " bytes",
                  std::to_string(bytes) + " bytes");
    }
    done += got;
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0)
    reject_file(path, "file", std::strerror(errno), "a readable safetensors file");
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      reject_file(path, "file", S_ISDIR(status.st_mode) ? "a directory" : "no regular file",
                  "a safetensors file");
    }
    const auto file_bytes = static_cast<std::int64_t>(status.st_size);
    if (file_bytes < kLengthBytes) {
      reject_file(path, "file", std::to_string(file_bytes) + " bytes",
                  "a safetensors file, at least 8 bytes");
    }
    std::array<unsigned char, kLengthBytes> length_bytes{};
    read_exactly(descriptor_, path, "header", 0, length_bytes.data(), kLengthBytes);
    std::uint64_t length = 0;
    for (std::size_t i = length_bytes.size(); i-- > 0;) length = length << 8 | length_bytes[i];
    const std::int64_t longest = std::min(file_bytes - kLengthBytes, kMaxHeaderBytes);
    if (length > static_cast<std::uint64_t>(longest)) {
      reject_file(path, "header", "a length of " + std::to_string(length) + " bytes",
                  "at most " + std::to_string(longest) + " in this file");
    }
    std::string json(static_cast<std::size_t>(length), '\0');
    read_exactly(descriptor_, path, "header", kLengthBytes, json.data(),
                 static_cast<std::int64_t>(length));
    if (json.empty() || json.front() != '{') {
      reject_file(path, "header",
                  json.empty() ? "nothing" : "'" + printable(json.substr(0, 8)) + "'",
                  "a JSON object");
    }
    data_start_ = kLengthBytes + static_cast<std::int64_t>(length);
    header_ = parse_header(path, json, file_bytes - data_start_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { ::close(descriptor_); }

const TensorInfo* SafetensorsReader::find(const std::string& name) const {
  const auto it = header_.tensors.find(name);
  return it == header_.tensors.end() ? nullptr : &it->second;
}

const TensorInfo& SafetensorsReader::get(const std::string& name,
                                         const std::string& shape_hint) const {
  if (const TensorInfo* info = find(name)) return *info;
  std::string names;
  for (const auto& [other, info] : header_.tensors) {
    if (names.size() > 80) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + printable(other);
  }
  reject_file(path_, tensor_part(name), names.empty() ? "no tensors" : "only " + names,
              "a tensor '" + name + "' " + shape_hint);
}

std::vector<std::uint8_t> SafetensorsReader::read(const TensorInfo& info) const {
  const std::int64_t memory = machine_memory_bytes();
  if (info.bytes > memory) {
    reject_file(path_, tensor_part(info.name), std::to_string(info.bytes) + " bytes",
                "at most this machine's memory, " + std::to_string(memory) + " bytes");
  }
  std::vector<std::uint8_t> data(static_cast<std::size_t>(info.bytes));
  read_exactly(descriptor_, path_, tensor_part(info.name), data_start_ + info.begin, data.data(),
               info.bytes);
  return data;
}

}  // namespace foscar::io
