// The command line of foscar bench.
#include <memory>

#include "bench.h"

namespace foscar::tool {
namespace {

void add_common(CLI::App& app, BenchOptions& options) {
  app.add_option("--backend", options.backend,
                 "Backend by name (see foscar info); the best one if not given");
  app.add_option("--format", options.formats, "Cache formats, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--page-size", options.page_sizes, "Tokens per page, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--head-dim", options.head_dim, "Width of a head")->capture_default_str();
  app.add_option("--repeats", options.repeats, "Timed launches per cell, at most")
      ->capture_default_str();
  app.add_flag("--check,!--no-check", options.check, "Compare with the oracle before timing");
  app.add_option("--commit", options.commit, "Commit of the sources, copied into the report");
  app.add_option("--output", options.output, "Write the JSON to this file");
}

// The command as given, without the directory of the program.
std::string command_text(std::span<char* const> arguments) {
  std::string text = "foscar";
  for (const char* argument : arguments.subspan(1)) text.append(" ").append(argument);
  return text;
}

}  // namespace

void add_bench_commands(CLI::App& app, std::function<int()>& command,
                        std::span<char* const> arguments) {
  CLI::App* bench = app.add_subcommand("bench", "Time decode or quantize_append over a grid");
  bench->require_subcommand(1);

  auto decode = std::make_shared<BenchDecodeOptions>();
  CLI::App* decode_app = bench->add_subcommand("decode", "Decode attention");
  add_common(*decode_app, *decode);
  decode->command = command_text(arguments);
  decode_app->add_option("--batch-size", decode->batch_sizes, "Requests, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  decode_app->add_option("--kv-len", decode->kv_lens, "Tokens per request, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  decode_app->add_option("--heads", decode->heads, "Query heads/KV heads, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  decode_app->add_option("--short-kv-len", decode->short_kv_len,
                         "Give all requests but the first this many tokens");
  decode_app->callback(
      [decode, &command] { command = [decode] { return bench_decode_command(*decode); }; });

  auto append = std::make_shared<BenchAppendOptions>();
  CLI::App* append_app = bench->add_subcommand("append", "quantize_append");
  add_common(*append_app, *append);
  append->command = command_text(arguments);
  append_app->add_option("--tokens", append->num_tokens, "New tokens, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  append_app->add_option("--kv-heads", append->num_kv_heads, "KV heads")->capture_default_str();
  append_app->add_option("--dtype", append->dtypes, "Types of the rows, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  append_app->callback(
      [append, &command] { command = [append] { return bench_append_command(*append); }; });
}

}  // namespace foscar::tool
