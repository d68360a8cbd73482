// The end record (PK 5 6) points at the central directory (PK 1 2 per entry), whose rows point at local headers (PK 3 4);
// the data follows the local header's name and extra field. Sizes are taken from the central directory only: writers may
// leave them zero in the local header.
#include "io/zip_archive.h"

#include <fstream>
#include <iterator>
#include <string_view>

#include "io/file_error.h"

namespace foscar::io {
namespace {

constexpr std::int64_t kEndBytes = 22, kRowBytes = 46, kLocalBytes = 30;
constexpr std::uint32_t kEndMark = 0x06054b50, kRowMark = 0x02014b50, kLocalMark = 0x04034b50;
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 32;

}  // namespace

ZipArchive::ZipArchive(const std::string& path) : path_(path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) reject_file(path, "file", "no readable file", "an archive that torch.save wrote");
  const std::streamoff length = file.tellg();
  if (length < kEndBytes || length >= kMaxFileBytes) {
    reject_file(path, "file", std::to_string(length) + " bytes",
                "a zip archive, as torch.save writes it, of less than 4 GiB");
  }
  bytes_.resize(static_cast<std::size_t>(length));
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes_.data()), length)) {
    reject_file(path, "file", "a read that failed", std::to_string(length) + " bytes");
  }
  const std::int64_t size = length;
  const auto number = [&](std::int64_t at, int width) {
    std::uint32_t value = 0;
    for (int i = width; i-- > 0;) value = value << 8 | bytes_[static_cast<std::size_t>(at + i)];
    return value;
  };
  const auto inside = [&](std::int64_t begin, std::int64_t bytes) {
    return begin >= 0 && bytes >= 0 && begin + bytes <= size;
  };
  const auto reject = [&](const std::string& found) {
    reject_file(path, "archive", found, "a zip archive with uncompressed entries");
  };

  std::int64_t end = size - kEndBytes;  // a comment of up to 65535 bytes may follow the record
  while (end >= 0 && end >= size - kEndBytes - 65535 && number(end, 4) != kEndMark) --end;
  if (end < 0 || number(end, 4) != kEndMark) reject("no end of central directory");
  const std::int64_t count = number(end + 10, 2);
  std::int64_t row = number(end + 16, 4);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!inside(row, kRowBytes) || number(row, 4) != kRowMark) {
      reject("a broken directory at entry " + std::to_string(i));
    }
    const std::int64_t name_bytes = number(row + 28, 2);
    if (!inside(row + kRowBytes, name_bytes)) reject("a name beyond the end of the file");
    const std::string name(reinterpret_cast<const char*>(&bytes_[std::size_t(row + kRowBytes)]),
                           static_cast<std::size_t>(name_bytes));
    const std::int64_t data_bytes = number(row + 24, 4), local = number(row + 42, 4);
    if (number(row + 10, 2) != 0 || number(row + 20, 4) != data_bytes ||
        number(row + 8, 2) % 2 != 0) {
      reject("a compressed or encrypted entry '" + printable(name) + "'");
    }
    if (!inside(local, kLocalBytes) || number(local, 4) != kLocalMark) {
      reject("no header for entry '" + printable(name) + "'");
    }
    const std::int64_t begin = local + kLocalBytes + number(local + 26, 2) + number(local + 28, 2);
    if (!inside(begin, data_bytes))
      reject("entry '" + printable(name) + "' beyond the end of the file");
    if (!entries_.emplace(name, std::span(bytes_.data() + begin, std::size_t(data_bytes))).second) {
      reject("entry '" + printable(name) + "' twice");
    }
    row += kRowBytes + name_bytes + number(row + 30, 2) + number(row + 32, 2);
  }
}

std::span<const std::uint8_t> ZipArchive::find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? std::span<const std::uint8_t>() : it->second;
}

std::string ZipArchive::root() const {
  constexpr std::string_view kPickle = "data.pkl";
  for (const auto& [name, data] : entries_) {
    if (name.ends_with(kPickle) && name.size() > kPickle.size() &&
        name.find('/') == name.size() - kPickle.size() - 1) {
      return name.substr(0, name.size() - kPickle.size());
    }
  }
  reject_file(path_, "archive", "no data.pkl", "an archive that torch.save wrote");
}

}  // namespace foscar::io
