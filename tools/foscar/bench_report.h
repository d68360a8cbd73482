// The JSON of a benchmark: what ran where, and one record per cell.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench.h"
#include "bench_device.h"

namespace foscar::tool {

// Device, driver, clocks, commit, date and command; the command adds its ceiling and its "records".
// Throws Error{kFile} already here when options.output cannot be written.
nlohmann::ordered_json start_report(BenchDevice& device, const BenchOptions& options);

// To options.output, or to standard output. Throws Error{kFile}.
void write_report(const nlohmann::ordered_json& report, const BenchOptions& options);

}  // namespace foscar::tool
