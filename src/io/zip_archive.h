// Reading the kind of zip archive that torch.save writes: entries stored without compression, below 4 GiB. Contents are
// untrusted: every offset and length is checked against the file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace foscar::io {

class ZipArchive {
 public:
  // Reads the file whole. Throws Error{kFile} for what is not such an archive.
  explicit ZipArchive(const std::string& path);

  const std::string& path() const { return path_; }
  // The bytes of the entry, or an empty span with null data where there is none.
  std::span<const std::uint8_t> find(const std::string& name) const;
  // The directory that every entry lies in, with its slash: "archive/". Throws Error{kFile} if there is no data.pkl in one.
  std::string root() const;

 private:
  std::string path_;
  std::vector<std::uint8_t> bytes_;
  std::map<std::string, std::span<const std::uint8_t>> entries_;
};

}  // namespace foscar::io
