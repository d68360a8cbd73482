// foscar info: version, backends, instruction sets and formats of this build on this machine.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "commands.h"
#include "device_arena.h"
#include "foscar/foscar.h"

namespace foscar::tool {
namespace {

// The instruction sets that the CPU backends ask about, as far as this machine has them.
std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const auto add = [&features](bool present, const char* name) {
    if (present) features.emplace_back(name);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512vbmi"), "avx512vbmi");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
#endif
  return features;
}

// Every format that exists at some head_dim.
std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const int k_bits : kSupportedBits) {
    for (const int v_bits : kSupportedBits) {
      for (const int group : kSupportedTokenGroupSizes) {
        for (const DType params : {DType::kF32, DType::kF16, DType::kBF16}) {
          const KvFormat format{
              {k_bits, QuantAxis::kToken, group}, {v_bits, QuantAxis::kToken, group}, params};
          names.push_back(format.name());
        }
      }
    }
  }
  return names;
}

const char* device_text(DeviceType device) { return device == DeviceType::kCpu ? "cpu" : "cuda"; }

void print_json(const std::vector<BackendInfo>& backends, const std::string& default_backend) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const BackendInfo& info : backends) {
    list.push_back({{"name", info.name},
                    {"device", device_text(info.device)},
                    {"available", info.available},
                    {"description", info.description}});
  }
  const nlohmann::ordered_json report{{"version", FOSCAR_VERSION},
                                      {"cpu_threads", std::thread::hardware_concurrency()},
                                      {"cpu_features", cpu_features()},
                                      {"backends", list},
                                      {"default_cpu_backend", default_backend},
                                      {"formats", format_names()},
                                      {"head_dims", kSupportedHeadDims},
                                      {"max_page_size", kMaxPageSize}};
  fmt::print("{}\n", report.dump(2));
}

}  // namespace

int info_command(const InfoOptions& options) {
  const std::vector<BackendInfo> backends = list_backends();
  const std::string default_backend = resolve_backend(DeviceType::kCpu);
  if (options.json) {
    print_json(backends, default_backend);
    return kExitOk;
  }
  fmt::print("foscar {}\n", FOSCAR_VERSION);
  fmt::print("CPU        {} threads", std::thread::hardware_concurrency());
  for (const std::string& feature : cpu_features()) fmt::print(" {}", feature);
  fmt::print("\nbackends\n");
  bool any_cuda = false;
  for (const BackendInfo& info : backends) {
    any_cuda = any_cuda || info.device == DeviceType::kCuda;
    fmt::print("  {} {:<18}{:<6}{}\n", info.available ? "+" : "-", info.name,
               device_text(info.device), info.description);
  }
  if (!any_cuda) fmt::print("  - {:<18}{:<6}not compiled into this build\n", "cuda", "cuda");
  fmt::print("  chosen for CPU tensors: {}\n", default_backend);
  fmt::print("formats    k<bits>v<bits>-token-g<group>-<parameters>: bits 2, 4; groups of");
  for (const int group : kSupportedTokenGroupSizes) fmt::print(" {}", group);
  fmt::print(" up to head_dim; parameters f32, f16, bf16\nhead_dim  ");
  for (const int head_dim : kSupportedHeadDims) fmt::print(" {}", head_dim);
  fmt::print("\npage_size  powers of two, 1 .. {}\n", kMaxPageSize);
  return kExitOk;
}

}  // namespace foscar::tool
