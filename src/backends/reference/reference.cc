// The table of the reference backend.
#include "backends/reference/reference.h"

#include <array>

namespace foscar {
namespace {

std::string always_available() { return {}; }

Support supports(const DecodeDesc& desc) {
  const std::string problem = format_problem(desc.format, desc.head_dim, desc.page_size);
  if (!problem.empty()) return {false, problem};
  if (desc.q_dtype != DType::kBF16 && desc.q_dtype != DType::kF16 && desc.q_dtype != DType::kF32) {
    return {false, "q: got " + std::string(dtype_name(desc.q_dtype)) +
                       ", allowed bfloat16, float16 or float32"};
  }
  return {true, {}};
}

std::int64_t no_workspace(const DecodeShape&, int) { return 0; }

}  // namespace

std::span<const Backend> reference_backends() {
  static constexpr std::array kBackends{Backend{
      .name = "reference",
      .device = DeviceType::kCpu,
      .unavailable_reason = always_available,
      .description =
          "double precision over dequantized values, one thread; for comparison, not for speed",
      .supports = supports,
      .decode = reference::decode,
      .decode_dense = reference::decode_dense,
      .quantize_append = reference::quantize_append,
      .dequantize = reference::dequantize,
      .merge_states = reference::merge_states,
      .decode_workspace_bytes = no_workspace,
      .rotate_rows = reference::rotate_rows}};
  return kBackends;
}

}  // namespace foscar
