#include "io/partial_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "io/file_error.h"

namespace foscar::io {

PartialFile::PartialFile(const std::string& path) : path_(path), partial_(path + ".partial") {
  // The file takes the name's place; a device or a pipe of that name must not be lost to it.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    reject_file(path, "file", S_ISDIR(status.st_mode) ? "a directory" : "no regular file",
                "a place that can be written");
  }
  file_ = std::fopen(partial_.c_str(), "wb");
  if (file_ == nullptr) fail();
}

PartialFile::~PartialFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!committed_) ::unlink(partial_.c_str());
}

void PartialFile::write(const void* data, std::size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) fail();
}

void PartialFile::commit() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail();
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail();
  committed_ = true;
}

void PartialFile::fail() const {
  reject_file(path_, "file", std::strerror(errno), "a place that can be written");
}

}  // namespace foscar::io
