#include "bench_report.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "io/partial_file.h"

namespace foscar::tool {

nlohmann::ordered_json start_report(BenchDevice& device, const BenchOptions& options) {
  if (!options.output.empty()) {
    // Hours of measurements must not end at a file that cannot be written.
    const io::PartialFile probe(options.output);
  }
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
  // The command line need not be UTF-8.
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  const std::string text = report.dump(2, ' ', false, kReplace) + "\n";
  if (options.output.empty()) {
    fmt::print("{}", text);
    return;
  }
  io::PartialFile file(options.output);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace foscar::tool
