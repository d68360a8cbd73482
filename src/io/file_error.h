// Errors about files: always Error{kFile}, always one line, always with the file, the part of it,
// what was found and what is expected. File contents are untrusted, so everything quoted from them
// is escaped and cut. The path comes from the caller: escaped, but never cut, since its end says
// most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace foscar::io {

// `text` with everything but printable ASCII as \xNN, cut after `max_length` characters.
std::string printable(std::string_view text, std::size_t max_length = 80);

// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

// Throws "<path>: <part>: found <found>, expected <expected>". `part` is "header", "tensor 'k'" or
// "file"; `found` and `expected` must already be printable.
[[noreturn]] void reject_file(const std::string& path, std::string_view part,
                              const std::string& found, const std::string& expected);

// "tensor '<name>'"
std::string tensor_part(std::string_view name);

}  // namespace foscar::io
