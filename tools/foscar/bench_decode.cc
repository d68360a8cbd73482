// foscar bench decode: a grid of formats, page sizes, heads, batch sizes and lengths.
#include <fmt/format.h>

#include <charconv>
#include <random>

#include "attention_oracle.h"
#include "bench.h"
#include "bench_cache.h"
#include "bench_device.h"
#include "bench_report.h"
#include "choose_backend.h"
#include "foscar/decode.h"
#include "foscar/error.h"

namespace foscar::tool {
namespace {

// Largest relative error that passes: the rounding of a BF16 output is 1.7e-3 in this norm.
constexpr double kMaxRelError = 3e-3;

struct Heads {
  int num_qo_heads;
  int num_kv_heads;
};

Heads parse_heads(const std::string& text) {
  Heads heads{};
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, heads.num_qo_heads);
  const bool has_slash = error == std::errc{} && slash != end && *slash == '/';
  const auto [rest, kv_error] =
      std::from_chars(has_slash ? slash + 1 : end, end, heads.num_kv_heads);
  if (!has_slash || kv_error != std::errc{} || rest != end || heads.num_kv_heads < 1 ||
      heads.num_qo_heads < 1 || heads.num_qo_heads % heads.num_kv_heads != 0) {
    throw Error(ErrorKind::kInvalidArgument, "--heads: got '" + text.substr(0, 40) +
                                                 "', expected HQ/HKV with HQ a multiple of HKV, "
                                                 "for example 32/8");
  }
  return heads;
}

struct Cell {
  Heads heads;
  CacheShape shape;
};

// One cell on the device, ready to be decoded.
class DecodeCell {
 public:
  DecodeCell(BenchDevice& device, const Cell& cell, const std::string& backend)
      : cell_(cell),
        arena_(device.new_arena()),
        bench_(make_bench_cache(*arena_, cell.shape, backend)) {
    const auto batch_size = static_cast<std::int64_t>(cell.shape.kv_len.size());
    q_ = HostTensor::filled(DType::kBF16,
                            {batch_size, cell.heads.num_qo_heads, cell.shape.head_dim});
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < q_.numel(); ++i) q_.set(i, normal(random));
    params_.q = arena_->upload(q_);
    params_.cache = bench_.cache;
    params_.o = arena_->allocate(DType::kBF16, q_.shape, 0xff);
    context_.backend = backend;
    context_.workspace_bytes =
        decode_workspace_bytes(static_cast<int>(batch_size), 1, cell.heads.num_qo_heads,
                               cell.heads.num_kv_heads, cell.shape.head_dim, arena_->device());
    if (context_.workspace_bytes > 0) {
      context_.workspace = arena_->allocate(DType::kU8, {context_.workspace_bytes}, 0).data;
    }
  }

  void decode() const { foscar::decode(params_, context_); }
  DeviceArena& arena() { return *arena_; }
  const BenchCache& cache() const { return bench_; }

  // Of the outputs of the first and the last (request, KV head), against double precision.
  double relative_error_of_samples() {
    const std::vector<float> o = arena_->download(params_.o).to_float();
    const std::vector<float> q = q_.to_float();
    const std::int64_t num_kv_heads = cell_.heads.num_kv_heads;
    const std::int64_t group_size = cell_.heads.num_qo_heads / num_kv_heads;
    const std::int64_t group_elements = group_size * cell_.shape.head_dim;
    std::vector<float> measured;
    std::vector<double> expected;
    const std::int64_t last =
        static_cast<std::int64_t>(cell_.shape.kv_len.size()) * num_kv_heads - 1;
    for (const std::int64_t sample : {std::int64_t{0}, last}) {
      const auto begin = static_cast<std::ptrdiff_t>(sample * group_elements);
      measured.insert(measured.end(), o.begin() + begin, o.begin() + begin + group_elements);
      const std::vector<double> rows = attend_one(
          *arena_, bench_, sample / num_kv_heads, static_cast<int>(sample % num_kv_heads),
          {q.begin() + begin, q.begin() + begin + group_elements});
      expected.insert(expected.end(), rows.begin(), rows.end());
      if (last == 0) break;
    }
    return relative_error(measured, expected);
  }

 private:
  Cell cell_;
  std::unique_ptr<DeviceArena> arena_;
  BenchCache bench_;
  HostTensor q_;
  DecodeParams params_;
  ExecutionContext context_;
};

nlohmann::ordered_json describe(const Cell& cell, const std::string& backend) {
  nlohmann::ordered_json record{
      {"kernel", "foscar " + backend},           {"format", cell.shape.format.name()},
      {"batch_size", cell.shape.kv_len.size()},  {"kv_len", cell.shape.kv_len.front()},
      {"num_qo_heads", cell.heads.num_qo_heads}, {"num_kv_heads", cell.heads.num_kv_heads},
      {"head_dim", cell.shape.head_dim},         {"page_size", cell.shape.page_size}};
  if (cell.shape.kv_len.back() != cell.shape.kv_len.front()) {
    record["other_kv_len"] = cell.shape.kv_len.back();
  }
  return record;
}

// Fills `record`; returns whether the output was right.
bool measure(BenchDevice& device, const Cell& cell, const std::string& backend,
             const BenchOptions& options, double ceiling_gbps, nlohmann::ordered_json& record) {
  DecodeCell problem(device, cell, backend);
  problem.decode();
  const double rel_error = options.check ? problem.relative_error_of_samples() : 0;
  const double us =
      time_cold_us(device, problem.arena(), options.repeats, [&problem] { problem.decode(); });
  const double gbps = 1e-3 * static_cast<double>(problem.cache().kv_bytes()) / us;
  record["us"] = us;
  record["gbps"] = gbps;
  record["share_of_ceiling"] = gbps / ceiling_gbps;
  record["baseline"] = nullptr;
  record["baseline_us"] = nullptr;
  record["speedup"] = nullptr;
  record["rel_error"] = options.check ? nlohmann::ordered_json(rel_error) : nullptr;
  fmt::print(stderr, "{} {}x{} {}/{} pages of {}: {:.1f} us, {:.0f} GB/s, {:.1f} %, error {:.1e}\n",
             cell.shape.format.name(), cell.shape.kv_len.size(), cell.shape.kv_len.front(),
             cell.heads.num_qo_heads, cell.heads.num_kv_heads, cell.shape.page_size, us, gbps,
             100 * gbps / ceiling_gbps, rel_error);
  return rel_error <= kMaxRelError;  // false for NaN
}

void require_positive(const char* option, const std::vector<std::int64_t>& values) {
  for (const std::int64_t value : values) {
    if (value >= 1 && value <= 1 << 24) continue;
    throw Error(
        ErrorKind::kInvalidArgument,
        std::string(option) + ": got " + std::to_string(value) + ", expected 1 .. 16777216");
  }
}

// The first request has kv_len tokens, the others short_kv_len if it is given.
std::vector<std::int32_t> lengths(const BenchDecodeOptions& options, std::int64_t batch_size,
                                  std::int64_t kv_len) {
  const std::int64_t others = options.short_kv_len > 0 ? options.short_kv_len : kv_len;
  std::vector<std::int32_t> all(static_cast<std::size_t>(batch_size),
                                static_cast<std::int32_t>(others));
  all.front() = static_cast<std::int32_t>(kv_len);
  return all;
}

// Every combination, checked.
std::vector<Cell> list_cells(const BenchDecodeOptions& options) {
  require_positive("--batch-size", options.batch_sizes);
  require_positive("--kv-len", options.kv_lens);
  if (options.short_kv_len != 0) require_positive("--short-kv-len", {options.short_kv_len});
  std::vector<Cell> cells;
  for (const std::string& name : options.formats) {
    for (const int page_size : options.page_sizes) {
      const KvFormat format = KvFormat::parse(name);
      const std::string problem = format_problem(format, options.head_dim, page_size);
      if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem);
      for (const std::string& text : options.heads) {
        const Heads heads = parse_heads(text);
        for (const std::int64_t batch_size : options.batch_sizes) {
          for (const std::int64_t kv_len : options.kv_lens) {
            cells.push_back({heads, CacheShape{.format = format,
                                               .head_dim = options.head_dim,
                                               .page_size = page_size,
                                               .num_kv_heads = heads.num_kv_heads,
                                               .kv_len = lengths(options, batch_size, kv_len)}});
          }
        }
      }
    }
  }
  return cells;
}

}  // namespace

int bench_decode_command(const BenchDecodeOptions& options) {
  const std::vector<Cell> cells = list_cells(options);
  const ChosenBackend backend = choose_backend(options.backend);
  const std::unique_ptr<BenchDevice> device = make_bench_device(backend.device);
  nlohmann::ordered_json report = start_report(*device, options);
  const double ceiling_gbps = device->read_ceiling_gbps();
  report["read_ceiling_gbps"] = ceiling_gbps;
  report["records"] = nlohmann::ordered_json::array();
  bool all_right = true;
  for (const Cell& cell : cells) {
    nlohmann::ordered_json record = describe(cell, backend.name);
    try {
      all_right = measure(*device, cell, backend.name, options, ceiling_gbps, record) && all_right;
    } catch (const Error& error) {  // the other cells still count
      all_right = false;
      record["error"] = error.what();
      fmt::print(stderr, "{}\n", record.dump());
    }
    report["records"].push_back(record);
  }
  write_report(report, options);
  return all_right ? kExitOk : kExitFailed;
}

}  // namespace foscar::tool
