// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace foscar::tool {

std::string bytes_text(std::int64_t bytes);     // "8.00 MiB"
std::string time_text(double microseconds);     // "812.3 us", "13.80 ms"
std::string error_text(double relative_error);  // "1.2e-04"

}  // namespace foscar::tool
