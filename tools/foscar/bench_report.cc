#include "bench_report.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <fstream>

#include "foscar/error.h"

namespace foscar::tool {

nlohmann::ordered_json start_report(BenchDevice& device, const BenchOptions& options) {
  const DeviceDescription description = device.describe();
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return {{"device", description.name},
          {"driver", description.driver},
          {"sm_clock_mhz", description.sm_clock_mhz},
          {"memory_clock_mhz", description.memory_clock_mhz},
          {"commit", options.commit},
          {"date", date},
          {"command", options.command}};
}

void write_report(const nlohmann::ordered_json& report, const BenchOptions& options) {
  const std::string text = report.dump(2) + "\n";
  if (options.output.empty()) {
    fmt::print("{}", text);
    return;
  }
  std::ofstream file(options.output);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::kFile, options.output + ": cannot be written");
}

}  // namespace foscar::tool
