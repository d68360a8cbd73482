// foscar_cpu_bench: times decode over low-bit caches on every instruction set that this machine
// has, beside the project's own BF16 decode on the same set, and prints JSON records.
//
//   foscar_cpu_bench [--batch 1,8] [--kv 4096,32768] [--threads 1,2] [--formats NAME,NAME]
//   [--backends NAME,NAME]
//                    [--runs N] [--small-pages] [--commit TEXT]
//
// Per cell all variants are run in turn, round after round, so that a change of clock or a noisy
// neighbour meets all of them; reported are the median and the tenth percentile. "hot": the call
// before was the same one; "swept": all caches were read over with other data before. Outputs are
// checked against a double-precision oracle before anything is timed.
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "oracle.h"
#include "problem.h"

namespace foscar::bench {
namespace {

struct Options {
  std::vector<int> batches{1, 8};
  std::vector<int> kv_lens{4096, 32768};
  std::vector<int> threads{1, 2};
  std::vector<std::string> formats{"k2v2-token-g128-f32", "k4v4-token-g128-f32"};
  std::vector<std::string> backends;  // empty: all available that are meant to be fast
  int runs = 15;
  bool huge_pages = true;
  std::string commit = "unknown";
  std::string command;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::vector<int> split_ints(const std::string& text) {
  std::vector<int> values;
  for (const std::string& part : split(text)) values.push_back(std::stoi(part));
  return values;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) options.command += (i > 0 ? " " : "") + std::string(argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--small-pages") {
      options.huge_pages = false;
      continue;
    }
    if (i + 1 >= argc) throw Error(ErrorKind::kInvalidArgument, name + ": needs a value");
    const std::string value = argv[++i];
    if (name == "--batch")
      options.batches = split_ints(value);
    else if (name == "--kv")
      options.kv_lens = split_ints(value);
    else if (name == "--threads")
      options.threads = split_ints(value);
    else if (name == "--formats")
      options.formats = split(value);
    else if (name == "--backends")
      options.backends = split(value);
    else if (name == "--runs")
      options.runs = std::stoi(value);
    else if (name == "--commit")
      options.commit = value;
    else
      throw Error(ErrorKind::kInvalidArgument, name + ": unknown option");
  }
  if (options.backends.empty()) {
    for (const BackendInfo& info : list_backends()) {
      const bool slow =
          info.name == "reference" || info.name == "cpu-scalar" || info.name == "cpu-amx-emulated";
      if (info.device == DeviceType::kCpu && info.available && !slow)
        options.backends.push_back(info.name);
    }
  }
  return options;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// One thing to time: a cache (null: BF16) on a backend.
struct Variant {
  std::string backend;
  const LowBitCache* cache;
  double rel_error = 0;
  std::vector<double> us;

  std::string format() const { return cache == nullptr ? "bf16" : cache->format; }
  double median() {
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
  double tenth() {
    std::sort(us.begin(), us.end());
    return us[us.size() / 10];
  }
};

void run(Problem& problem, const Variant& variant) {
  const ExecutionContext context{.backend = variant.backend};
  if (variant.cache == nullptr) {
    decode_dense(problem.params(nullptr), problem.dense(), context);
  } else {
    decode(problem.params(variant.cache), context);
  }
}

double time_us(Problem& problem, const Variant& variant) {
  const auto start = std::chrono::steady_clock::now();
  run(problem, variant);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void print_record(Problem& problem, Variant& variant, Variant& baseline, int threads,
                  const char* cache_state, double ceiling, bool first) {
  const Shape& s = problem.shape;
  const double us = variant.median();
  const double bytes = variant.cache == nullptr ? problem.dense_bytes : variant.cache->bytes;
  const double gbps = bytes / us * 1e-3;
  std::printf(
      "%s\n  {\"kernel\": \"%s\", \"format\": \"%s\", \"batch_size\": %d, \"kv_len\": %d, "
      "\"num_qo_heads\": %d, "
      "\"num_kv_heads\": %d, \"head_dim\": %d, \"page_size\": %d, \"threads\": %d, \"caches\": "
      "\"%s\", \"us\": %.1f, "
      "\"us_p10\": %.1f, \"gbps\": %.2f, \"share_of_ceiling\": %.3f, \"baseline\": \"%s bf16\", "
      "\"baseline_us\": %.1f, "
      "\"speedup\": %.2f, \"rel_error\": %.2e}",
      first ? "" : ",", variant.backend.c_str(), variant.format().c_str(), s.batch_size, s.kv_len,
      s.num_qo_heads, s.num_kv_heads, s.head_dim, s.page_size, threads, cache_state, us,
      variant.tenth(), gbps, gbps / ceiling, baseline.backend.c_str(), baseline.median(),
      baseline.median() / us, variant.rel_error);
  std::fflush(stdout);
}

void bench_cell(const Options& options, const Shape& shape, const std::map<int, double>& ceilings,
                bool& first) {
  Problem problem = make_problem(shape, options.formats, options.huge_pages);
  std::vector<Variant> variants;
  std::map<std::string, std::vector<double>> references;
  for (const std::string& backend : options.backends) {
    variants.push_back({backend, nullptr, 0, {}});
    for (const LowBitCache& cache : problem.caches) variants.push_back({backend, &cache, 0, {}});
  }
  for (Variant& variant : variants) {
    run(problem, variant);
    variant.rel_error = relative_error(problem, variant.cache, references[variant.format()]);
    if (!(variant.rel_error < 1e-2)) {
      throw Error(ErrorKind::kRuntime, variant.backend + " " + variant.format() +
                                           ": wrong output, relative error " +
                                           std::to_string(variant.rel_error));
    }
  }
  for (int threads : options.threads) {
    setenv("FOSCAR_NUM_THREADS", std::to_string(threads).c_str(), 1);
    for (const bool hot : {true, false}) {
      for (Variant& variant : variants) variant.us.clear();
      for (int i = 0; i < options.runs; ++i) {
        for (Variant& variant : variants) {
          if (hot) {
            run(problem, variant);
          } else {
            sweep_caches();
          }
          variant.us.push_back(time_us(problem, variant));
        }
      }
      for (Variant& variant : variants) {
        Variant& baseline = *std::find_if(variants.begin(), variants.end(), [&](const Variant& v) {
          return v.backend == variant.backend && v.cache == nullptr;
        });
        print_record(problem, variant, baseline, threads, hot ? "hot" : "swept",
                     ceilings.at(threads), first);
        first = false;
      }
    }
  }
  unsetenv("FOSCAR_NUM_THREADS");
}

int main_checked(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::map<int, double> ceilings;
  for (int threads : options.threads)
    ceilings[threads] = read_ceiling_gbps(threads, options.huge_pages);
  utsname system{};
  uname(&system);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::printf(
      "{\"device\": \"%s\", \"driver\": \"%s %s\", \"commit\": \"%s\", \"date\": \"%s\", "
      "\"command\": \"%s\",\n",
      processor_name().c_str(), system.sysname, system.release, options.commit.c_str(), date,
      options.command.c_str());
  std::printf(" \"huge_pages\": %s, \"read_ceiling_gbps\": %.1f, \"read_ceilings_gbps\": {",
              options.huge_pages ? "true" : "false", ceilings.rbegin()->second);
  const char* separator = "";
  for (const auto& [threads, gbps] : ceilings) {
    std::printf("%s\"%d\": %.1f", separator, threads, gbps);
    separator = ", ";
  }
  std::printf("},\n \"records\": [");
  bool first = true;
  for (int batch : options.batches) {
    for (int kv_len : options.kv_lens) {
      bench_cell(options, Shape{.batch_size = batch, .kv_len = kv_len}, ceilings, first);
    }
  }
  std::printf("\n]}\n");
  return 0;
}

}  // namespace
}  // namespace foscar::bench

int main(int argc, char** argv) {
  try {
    return foscar::bench::main_checked(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "foscar_cpu_bench: %s\n", error.what());
    return 2;
  }
}
