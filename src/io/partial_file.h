// A file that appears under its name only when it is complete: written as "<path>.partial", renamed by commit(). Without a
// commit nothing is left behind and an older file of that name is untouched.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

namespace foscar::io {

class PartialFile {
 public:
  // Throws Error{kFile} when `path` cannot be written, or names something that is no regular file.
  explicit PartialFile(const std::string& path);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::string partial_;
  std::FILE* file_ = nullptr;
  bool committed_ = false;
};

}  // namespace foscar::io
