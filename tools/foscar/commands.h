// The subcommands. main.cc fills the options from the command line; each command prints to stdout,
// returns the exit code and throws foscar::Error for everything that is wrong with its input.
#pragma once

#include <cstdint>
#include <string>

namespace foscar::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a check failed, or the device or the operating system did
inline constexpr int kExitBadInput = 2;  // a file, an option, or a problem that no backend offers

struct RunOptions {
  std::string input;           // safetensors file; empty: `synthetic` says what to generate
  std::string synthetic;       // BATCHxLENxHQ/HKVxD
  std::int64_t extend_to = 0;  // tokens; 0: as the input is
  std::string format = "k2v2-token-g128-f32";
  std::string backend;  // empty: the best one
  int page_size = 64;   // tokens
  int threads = 0;      // of the CPU backends; 0: their own choice
  bool json = false;
  std::string output;  // safetensors file for o and lse; empty: none
};
int run_command(const RunOptions& options);

struct QuantizeOptions {
  std::string input;
  std::string output;
  std::string format = "k2v2-token-g128-f32";
  int page_size = 64;
};
int quantize_command(const QuantizeOptions& options);

struct InspectOptions {
  std::string input;
  bool json = false;
};
int inspect_command(const InspectOptions& options);

struct InfoOptions {
  bool json = false;
};
int info_command(const InfoOptions& options);

struct SelftestOptions {
  std::string backend;  // empty: every available one
};
int selftest_command(const SelftestOptions& options);

}  // namespace foscar::tool
