// foscar selftest: every backend of this machine against the reference, on generated data, in
// seconds. It answers "does this build compute the right thing here"; the exhaustive grid is the
// test suite's.
//
// Per case: the pool must equal the reference's byte for byte; what the backend reads back must
// equal what the reference reads back; both decodes (that of BF16 pages where it is offered) must
// agree with double-precision attention over the rows that their cache holds. Requests are ragged,
// one is empty, and everything that must not be read is poisoned.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "choose_backend.h"
#include "commands.h"
#include "decode_job.h"
#include "foscar/backends.h"
#include "foscar/error.h"
#include "text_report.h"

namespace foscar::tool {
namespace {

struct Case {
  const char* format;
  const char* shape;  // BATCHxLENxHQ/HKVxD
  int page_size;      // tokens
};
constexpr Case kCases[] = {
    {"k2v2-token-g128-f32", "4x300x8/2x128", 64},  {"k4v4-token-g128-f32", "4x300x8/2x128", 16},
    {"k4v2-token-g64-f16", "4x129x6/2x128", 32},   {"k2v4-token-g32-bf16", "4x77x5/1x128", 1},
    {"k2v2-token-g64-f32", "4x200x4/4x64", 256},   {"k4v4-token-g32-f16", "4x200x7/1x64", 8},
    {"k2v2-token-g256-f32", "4x150x16/2x256", 64}, {"k4v4-token-g128-bf16", "4x150x12/1x256", 4},
};

// Relative error that a decode may have (Euclidean): the arithmetic's, plus half a unit in the last
// place of the output.
double decode_tolerance(DType output) {
  constexpr double kArithmetic = 5e-4;
  return kArithmetic + (output == DType::kBF16  ? 0x1p-9
                        : output == DType::kF16 ? 0x1p-12
                                                : 0x1p-25);
}
// Absolute error that a log-sum-exp of this size may have.
double lse_tolerance(double lse) { return 1e-3 + 1e-4 * std::fabs(lse); }

// Failures of one backend, and the largest errors seen.
struct Findings {
  std::vector<std::string> failures;
  int not_offered = 0;  // cases that the backend says it does not support
  double largest_error = 0;

  void expect(bool holds, const std::string& what) {
    if (!holds) failures.push_back(what);
  }
};

KvInput ragged_input(const char* shape) {
  KvInput input = generate_kv_input(shape);
  const auto longest = static_cast<std::int32_t>(input.max_kv_len());
  input.kv_len = {longest, 0, 1, longest / 2 + 1};
  // Rows beyond kv_len may hold anything: infinities would reach every result that looks at them.
  const std::int64_t row = input.k.shape[2] * input.k.shape[3];
  for (std::int64_t b = 0; b < input.batch_size(); ++b) {
    for (std::int64_t i = input.kv_len[static_cast<std::size_t>(b)] * row; i < longest * row; ++i) {
      input.k.set(b * longest * row + i, std::numeric_limits<float>::infinity());
      input.v.set(b * longest * row + i, std::numeric_limits<float>::infinity());
    }
  }
  return input;
}

void check_output(Findings& findings, const std::string& what, const DecodeOutput& output,
                  const OracleOutput& oracle) {
  const double error = relative_error(output.o.to_float(), oracle.o);
  findings.largest_error = std::max(findings.largest_error, error);
  findings.expect(error <= decode_tolerance(output.o.dtype),
                  fmt::format("{}: error {} above {}", what, error_text(error),
                              error_text(decode_tolerance(output.o.dtype))));
  for (std::size_t row = 0; row < oracle.lse.size(); ++row) {
    const double measured = output.lse.at(static_cast<std::int64_t>(row));
    const double expected = oracle.lse[row];
    const bool agrees = std::isinf(expected)
                            ? measured == expected
                            : std::fabs(measured - expected) <= lse_tolerance(expected);
    findings.expect(agrees,
                    fmt::format("{}: lse[{}] is {}, expected {}", what, row, measured, expected));
    if (!agrees) return;
  }
}

void check_case(Findings& findings, const Case& test, const ChosenBackend& backend) {
  const KvInput input = ragged_input(test.shape);
  const std::string what =
      fmt::format("{} {} pages of {}", test.format, test.shape, test.page_size);
  const KvFormat format = KvFormat::parse(test.format);
  DecodeJob job(input, {format, test.page_size, backend.name, backend.device});
  DecodeJob reference(input, {format, test.page_size, "reference", DeviceType::kCpu});

  findings.expect(job.pool().bytes == reference.pool().bytes,
                  what + ": quantized bytes differ from the reference's");
  const KvRows stored = reference.dequantized();
  const KvRows read_back = job.dequantized();
  findings.expect(read_back.k.bytes == stored.k.bytes && read_back.v.bytes == stored.v.bytes,
                  what + ": dequantized values differ from the reference's");
  job.decode();
  check_output(findings, what, job.output(), job.oracle(stored));
  if (job.try_decode_bf16()) {
    check_output(findings, what + ", BF16 cache", job.output_bf16(), job.oracle(job.rows_bf16()));
  }
}

// Two states of random rows, one of them empty in row 0, against the formula in double precision.
void check_merge(Findings& findings, const ChosenBackend& backend) {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kHeadDim = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  HostTensor v = HostTensor::filled(DType::kF32, {2, kRows, kHeads, kHeadDim});
  HostTensor lse = HostTensor::filled(DType::kF32, {2, kRows, kHeads});
  for (std::int64_t i = 0; i < v.numel(); ++i) v.set(i, normal(random));
  for (std::int64_t i = 0; i < lse.numel(); ++i) lse.set(i, 3 * normal(random));
  lse.set(0, -std::numeric_limits<float>::infinity());

  std::vector<double> expected(static_cast<std::size_t>(kRows * kHeads * kHeadDim));
  for (std::int64_t row = 0; row < kRows * kHeads; ++row) {
    const double a = std::exp(double{lse.at(row)});
    const double b = std::exp(double{lse.at(kRows * kHeads + row)});
    for (std::int64_t c = 0; c < kHeadDim; ++c) {
      const std::int64_t at = row * kHeadDim + c;
      expected[static_cast<std::size_t>(at)] =
          (a * v.at(at) + b * v.at(kRows * kHeads * kHeadDim + at)) / (a + b);
    }
  }
  const std::unique_ptr<DeviceArena> arena = make_arena(backend.device);
  const Tensor o = arena->allocate(DType::kF32, {kRows, kHeads, kHeadDim}, 0xff);
  const Tensor lse_out = arena->allocate(DType::kF32, {kRows, kHeads}, 0xff);
  merge_states(arena->upload(v), arena->upload(lse), o, lse_out, {.backend = backend.name});
  const double error = relative_error(arena->download(o).to_float(), expected);
  constexpr double kTolerance = 16 * 0x1p-23;  // a few roundings and two exponentials in FP32
  findings.expect(error <= kTolerance, fmt::format("merge_states: error {}", error_text(error)));
}

// Whether the backend passed; prints its line.
bool check_backend(const ChosenBackend& backend) {
  Findings findings;
  const auto guarded = [&findings](const std::string& what, const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kUnsupported) {
        ++findings.not_offered;
      } else {
        findings.expect(false, what + ": " + error.what());
      }
    }
  };
  for (const Case& test : kCases)
    guarded(test.format, [&] { check_case(findings, test, backend); });
  guarded("merge_states", [&] { check_merge(findings, backend); });

  // A backend that offers none of the cases has not been checked.
  findings.expect(findings.not_offered < static_cast<int>(std::size(kCases)), "no case is offered");
  fmt::print("{:<14} {}   {} of {} cases, largest decode error {}\n", backend.name,
             findings.failures.empty() ? "ok  " : "FAIL",
             static_cast<int>(std::size(kCases)) - findings.not_offered, std::size(kCases),
             error_text(findings.largest_error));
  for (const std::string& failure : findings.failures) fmt::print("    {}\n", failure);
  return findings.failures.empty();
}

}  // namespace

int selftest_command(const SelftestOptions& options) {
  std::vector<ChosenBackend> backends;
  if (!options.backend.empty()) {
    backends.push_back(choose_backend(options.backend));
  } else {
    for (const BackendInfo& info : list_backends()) {
      if (!info.available) {
        fmt::print("{:<14} skipped   {}\n", info.name, info.description);
      } else if (!has_arena(info.device)) {
        fmt::print("{:<14} skipped   the tool cannot place tensors on this device\n", info.name);
      } else {
        backends.push_back({info.name, info.device});
      }
    }
  }
  bool all_passed = true;
  for (const ChosenBackend& backend : backends) all_passed = check_backend(backend) && all_passed;
  return all_passed ? kExitOk : kExitFailed;
}

}  // namespace foscar::tool
