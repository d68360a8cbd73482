// foscar bench: times decode and quantize_append over a grid of problems and reports JSON. Each
// cell is checked before it is timed; on a CUDA device the caches are flushed by reads before every
// single launch, and the time is that between two events around it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "commands.h"

namespace foscar::tool {

// What both benchmarks share.
struct BenchOptions {
  std::string backend;  // empty: the best one
  std::vector<std::string> formats{"k2v2-token-g128-f32"};
  std::vector<int> page_sizes{64};  // tokens
  int head_dim = 128;
  int repeats = 31;     // timed launches per cell, at most; slow cells stop after half a second
  bool check = true;    // compare with the oracle first
  std::string commit;   // of the sources, for the report
  std::string output;   // file for the JSON; empty: standard output
  std::string command;  // the command line
};

struct BenchDecodeOptions : BenchOptions {
  std::vector<std::int64_t> batch_sizes{1, 4, 16, 64};
  std::vector<std::int64_t> kv_lens{4096, 16384, 32768, 131072};
  std::vector<std::string> heads{"32/8"};  // query heads / KV heads
  std::int64_t short_kv_len = 0;           // not 0: of all requests but the first
};
int bench_decode_command(const BenchDecodeOptions& options);

struct BenchAppendOptions : BenchOptions {
  std::vector<std::int64_t> num_tokens{65536};
  std::vector<std::string> dtypes{"bfloat16"};
  int num_kv_heads = 8;
};
int bench_append_command(const BenchAppendOptions& options);

// Adds `bench decode` and `bench append` to the command line; the chosen one is left in `command`.
// `arguments` is the command line as main() got it, for the reports.
void add_bench_commands(CLI::App& app, std::function<int()>& command,
                        std::span<char* const> arguments);

}  // namespace foscar::tool
