// The command line. Exit codes: 0 done; 1 a check failed, or the machine did; 2 bad input. An error
// is one line on stderr.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>

#include "bench.h"
#include "commands.h"
#include "foscar/error.h"
#include "foscar/foscar.h"

namespace {

using namespace foscar::tool;

int exit_code(foscar::ErrorKind kind) {
  return kind == foscar::ErrorKind::kRuntime ? kExitFailed : kExitBadInput;
}

int fail(int code, std::string message) {
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "foscar: {}\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Decode attention over 2- and 4-bit KV caches."};
  app.set_version_flag("--version", FOSCAR_VERSION);
  app.require_subcommand(0, 1);  // with (1, 1) an unknown name would not be named in the error
  std::function<int()> command;
  const std::string format_help = "Cache format, for example k2v2-token-g128-f32";
  const std::string page_help = "Tokens per page, a power of two up to 256";

  RunOptions run;
  CLI::App* run_app =
      app.add_subcommand("run", "Quantize, decode, and compare with BF16 and with exact attention");
  auto* source = run_app->add_option_group("source");
  source->add_option("--input", run.input, "safetensors file with q, k, v and, optionally, kv_len");
  source->add_option("--synthetic", run.synthetic,
                     "Generate the input: BATCHxLENxHQ/HKVxD, e.g. 1x32768x32/8x128");
  source->require_option(1);
  run_app
      ->add_option("--extend-to", run.extend_to,
                   "Repeat keys and values, with noise, up to this many tokens")
      ->check(CLI::Range(1, 1 << 24));
  run_app->add_option("--format", run.format, format_help)->capture_default_str();
  run_app->add_option("--backend", run.backend,
                      "Backend by name (see foscar info); the best one if not given");
  run_app->add_option("--page-size", run.page_size, page_help)->capture_default_str();
  run_app->add_option("--threads", run.threads, "Threads of the CPU backends (FOSCAR_NUM_THREADS)")
      ->check(CLI::Range(1, 4096));
  run_app->add_flag("--json", run.json, "Report as JSON");
  run_app->add_option("--output", run.output, "Write o and lse to this safetensors file");
  run_app->callback([&] { command = [&] { return run_command(run); }; });

  QuantizeOptions quantize;
  CLI::App* quantize_app =
      app.add_subcommand("quantize", "Write keys and values as a saved low-bit cache");
  quantize_app
      ->add_option("--input", quantize.input, "safetensors file with k, v and, optionally, kv_len")
      ->required();
  quantize_app->add_option("--output", quantize.output, "The saved cache, a safetensors file")
      ->required();
  quantize_app->add_option("--format", quantize.format, format_help)->capture_default_str();
  quantize_app->add_option("--page-size", quantize.page_size, page_help)->capture_default_str();
  quantize_app->callback([&] { command = [&] { return quantize_command(quantize); }; });

  InspectOptions inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "Show what a saved cache holds");
  inspect_app->add_option("input,--input", inspect.input, "The saved cache")->required();
  inspect_app->add_flag("--json", inspect.json, "Report as JSON");
  inspect_app->callback([&] { command = [&] { return inspect_command(inspect); }; });

  InfoOptions info;
  CLI::App* info_app =
      app.add_subcommand("info", "Show version, backends, CPU features and formats");
  info_app->add_flag("--json", info.json, "Report as JSON");
  info_app->callback([&] { command = [&] { return info_command(info); }; });

  SelftestOptions selftest;
  CLI::App* selftest_app =
      app.add_subcommand("selftest", "Check the backends of this machine against the reference");
  selftest_app->add_option("--backend", selftest.backend,
                           "Only this backend; all available ones if not given");
  selftest_app->callback([&] { command = [&] { return selftest_command(selftest); }; });

  add_bench_commands(app, command, {argv, static_cast<std::size_t>(argc)});

  try {
    app.parse(argc, argv);
    if (!command)
      return fail(kExitBadInput,
                  "a subcommand is required: run, quantize, inspect, info, selftest or bench");
    const int code = command();
    if (std::fflush(stdout) != 0)
      return fail(kExitFailed, std::string("standard output: ") + std::strerror(errno));
    return code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kExitBadInput, error.what());
  } catch (const foscar::Error& error) {
    return fail(exit_code(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(kExitFailed, error.what());
  }
}
