// The CPU backends, best first: one table of functions per instruction set, all running the same
// algorithms.
#include "backends/cpu/features.h"
#include "backends/cpu/rotate.h"
#include "backends/cpu/schedule.h"
#include "foscar/error.h"

namespace foscar {
namespace {

using cpu::Kernels;

Support supports(const DecodeDesc& desc) {
  if (desc.format.k.axis != QuantAxis::kToken || desc.format.v.axis != QuantAxis::kToken) {
    return {false, "format: the CPU backends take token-wise formats only, got " +
                       desc.format.name() +
                       "; the nearest is the same bits and groups with 'token'"};
  }
  const std::string problem = format_problem(desc.format, desc.head_dim, desc.page_size);
  if (!problem.empty()) return {false, problem};
  if (desc.num_kv_heads > 0 && desc.num_qo_heads % desc.num_kv_heads != 0) {
    return {false, "num_qo_heads: must be a multiple of num_kv_heads, got " +
                       std::to_string(desc.num_qo_heads) + " and " +
                       std::to_string(desc.num_kv_heads)};
  }
  if (desc.q_dtype != DType::kF32 && desc.q_dtype != DType::kF16 && desc.q_dtype != DType::kBF16) {
    return {false, "q: must be float32, float16 or bfloat16, got " +
                       std::string(dtype_name(desc.q_dtype))};
  }
  return {true, {}};
}

// A Backend holds plain function pointers, so the table of kernels is a template argument.
template <const Kernels& (*kernels)()>
constexpr Backend make_backend(std::string_view name, std::string_view description,
                               std::string (*unavailable)()) {
  return {
      .name = name,
      .device = DeviceType::kCpu,
      .unavailable_reason = unavailable,
      .description = description,
      .supports = supports,
      .decode = [](const DecodeArgs& args) { cpu::run_decode(kernels(), args); },
      .decode_dense = [](const DenseDecodeArgs& args) { cpu::run_decode_dense(kernels(), args); },
      .quantize_append = [](const AppendArgs& args) { cpu::run_quantize_append(kernels(), args); },
      .dequantize = [](const DequantizeArgs& args) { cpu::run_dequantize(kernels(), args); },
      .merge_states = [](const MergeArgs& args) { cpu::run_merge_states(args); },
      .decode_workspace_bytes = [](const DecodeShape&, int) { return std::int64_t{0}; },
      .rotate_rows = [](const RotateArgs& args) { cpu::run_rotate_rows(kernels(), args); }};
}

std::string missing(const std::string& what) {
  return what.empty() ? std::string() : "this machine lacks " + what;
}

}  // namespace

std::span<const Backend> cpu_backends() {
  static constexpr Backend kBackends[] = {
#if FOSCAR_CPU_X86
    make_backend<cpu::amx_kernels>("cpu-amx",
                                   "AMX: tile products over packed codes, the rest AVX-512",
                                   [] { return missing(cpu::features().missing_amx); }),
    make_backend<cpu::avx512_kernels>("cpu-avx512",
                                      "AVX-512 with VNNI: integer dot products over packed codes",
                                      [] { return missing(cpu::features().missing_avx512); }),
    make_backend<cpu::avx2_kernels>("cpu-avx2",
                                    "AVX2, FMA and F16C: integer products over packed codes",
                                    [] { return missing(cpu::features().missing_avx2); }),
#endif
    make_backend<cpu::scalar_kernels>("cpu-scalar",
                                      "plain C++, the readable form of the same algorithm",
                                      [] { return std::string(); }),
    make_backend<cpu::amx_emulated_kernels>(
        "cpu-amx-emulated", "the algorithm of cpu-amx over emulated tiles: for tests, slow",
        [] { return std::string(); }),
  };
  return kBackends;
}

}  // namespace foscar
