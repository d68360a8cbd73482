#include "bench_report.h"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "foscar/error.h"

namespace foscar::tool {

namespace {

// Hours of measurements must not end at a file that cannot be written, nor replace a good one by
// half a new one.
std::string partial_path(const BenchOptions& options) { return options.output + ".partial"; }

[[noreturn]] void reject_output(const BenchOptions& options) {
  throw Error(ErrorKind::kFile, options.output + ": cannot be written");
}

}  // namespace

nlohmann::ordered_json start_report(BenchDevice& device, const BenchOptions& options) {
  if (!options.output.empty()) {
    struct stat status {};
    const bool exists = ::stat(options.output.c_str(), &status) == 0;
    if ((exists && !S_ISREG(status.st_mode)) || !std::ofstream(partial_path(options)))
      reject_output(options);
    ::unlink(partial_path(options).c_str());
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
  const std::string partial = partial_path(options);
  std::ofstream file(partial);
  file << text;
  file.close();
  if (!file || std::rename(partial.c_str(), options.output.c_str()) != 0) {
    ::unlink(partial.c_str());
    reject_output(options);
  }
}

}  // namespace foscar::tool
