#include "io/file_error.h"

#include "foscar/error.h"

namespace foscar::io {

std::string printable(std::string_view text, std::size_t max_length) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (result.size() >= max_length) return result + "...";
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kHexDigits[byte >> 4];
      result += kHexDigits[byte & 15];
    }
  }
  return result;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

void reject_file(const std::string& path, std::string_view part, const std::string& found,
                 const std::string& expected) {
  throw Error(ErrorKind::kFile, printable(path, path.size() * 4) + ": " + std::string(part) +
                                    ": found " + found + ", expected " + expected);
}

std::string tensor_part(std::string_view name) { return "tensor '" + printable(name) + "'"; }

}  // namespace foscar::io
