// foscar bench append: quantize_append of a block of new tokens, against a copy of as many bytes.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench.h"
#include "bench_cache.h"
#include "bench_device.h"
#include "bench_report.h"
#include "choose_backend.h"
#include "foscar/append.h"
#include "foscar/error.h"

namespace foscar::tool {
namespace {

constexpr std::int64_t kCheckedTokens = 512;

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "--dtype: got '" + name + "', expected bfloat16, float16 or float32");
}

struct AppendCell {
  KvFormat format;
  int page_size;
  int head_dim;
  int num_kv_heads;
  std::int64_t num_tokens;
  DType dtype;
};

HostTensor generate(const AppendCell& cell, std::uint32_t seed) {
  HostTensor rows =
      HostTensor::filled(cell.dtype, {cell.num_tokens, cell.num_kv_heads, cell.head_dim});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  // A normal value of its own for each of 64 Mi elements would take seconds.
  std::vector<float> values(1 << 20);
  for (float& value : values) value = normal(random);
  for (std::int64_t i = 0; i < rows.numel(); ++i) {
    rows.set(i, values[static_cast<std::size_t>(i + i / 1021) % values.size()]);
  }
  return rows;
}

// The slot of token t: tokens fill pages in order, pages are shuffled.
std::vector<std::int64_t> shuffled_slots(const AppendCell& cell) {
  const std::int64_t num_pages = (cell.num_tokens + cell.page_size - 1) / cell.page_size;
  std::vector<std::int64_t> pages(static_cast<std::size_t>(num_pages));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int64_t>(i);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(cell.num_tokens));
  for (std::int64_t t = 0; t < cell.num_tokens; ++t) {
    slots[static_cast<std::size_t>(t)] =
        pages[static_cast<std::size_t>(t / cell.page_size)] * cell.page_size + t % cell.page_size;
  }
  return slots;
}

Tensor upload_slots(DeviceArena& arena, const std::vector<std::int64_t>& slots) {
  const auto count = static_cast<std::int64_t>(slots.size());
  const Tensor tensor = arena.allocate(DType::kI64, {count}, 0);
  arena.copy_from_host(tensor, slots.data(), count * std::int64_t{sizeof(slots[0])});
  return tensor;
}

class AppendProblem {
 public:
  AppendProblem(BenchDevice& device, const AppendCell& cell, const std::string& backend)
      : cell_(cell),
        layout_(make_page_layout(cell.format, cell.head_dim, cell.page_size)),
        arena_(device.new_arena()),
        k_host_(generate(cell, 1)),
        v_host_(generate(cell, 2)),
        slots_host_(shuffled_slots(cell)),
        k_(arena_->upload(k_host_)),
        v_(arena_->upload(v_host_)),
        slots_(upload_slots(*arena_, slots_host_)),
        cache_(make_cache(*arena_)),
        backend_(backend) {}

  void append() const { quantize_append(k_, v_, slots_, cache_, {.backend = backend_}); }
  DeviceArena& arena() { return *arena_; }

  std::int64_t bytes_read() const { return 2 * k_host_.numel() * dtype_bytes(cell_.dtype); }
  std::int64_t bytes_written() const {
    return cell_.num_tokens * cell_.num_kv_heads * token_bytes(layout_);
  }

  // Whether the first tokens' pages equal, byte for byte, those of the reference backend.
  bool equals_reference() {
    const std::int64_t count =
        std::min(kCheckedTokens / cell_.page_size * cell_.page_size, cell_.num_tokens);
    const std::unique_ptr<DeviceArena> host = make_arena(DeviceType::kCpu);
    const auto head_rows = [&](HostTensor rows) {
      rows.shape[0] = count;
      rows.bytes.resize(static_cast<std::size_t>(rows.numel() * dtype_bytes(rows.dtype)));
      return host->upload(rows);
    };
    const PagedKvCache expected = make_cache(*host);
    const std::vector<std::int64_t> slots(slots_host_.begin(), slots_host_.begin() + count);
    quantize_append(head_rows(k_host_), head_rows(v_host_), upload_slots(*host, slots), expected,
                    {.backend = "reference"});
    std::vector<std::uint8_t> page(static_cast<std::size_t>(cache_.pool.strides[0]));
    for (std::int64_t t = 0; t < count; t += cell_.page_size) {
      const std::int64_t offset =
          slots_host_[static_cast<std::size_t>(t)] / cell_.page_size * cache_.pool.strides[0];
      Tensor source = cache_.pool;
      source.data = static_cast<std::uint8_t*>(source.data) + offset;
      arena_->copy_to_host(page.data(), source, static_cast<std::int64_t>(page.size()));
      if (!std::equal(page.begin(), page.end(),
                      static_cast<const std::uint8_t*>(expected.pool.data) + offset)) {
        return false;
      }
    }
    return true;
  }

 private:
  PagedKvCache make_cache(DeviceArena& arena) const {
    PagedKvCache cache;
    cache.format = cell_.format;
    cache.head_dim = cell_.head_dim;
    cache.page_size = cell_.page_size;
    const std::int64_t num_pages = (cell_.num_tokens + cell_.page_size - 1) / cell_.page_size;
    cache.pool =
        arena.allocate(DType::kU8, {num_pages, cell_.num_kv_heads, layout_.page_head_bytes}, 0xff);
    return cache;
  }

  AppendCell cell_;
  PageLayout layout_;
  std::unique_ptr<DeviceArena> arena_;
  HostTensor k_host_, v_host_;
  std::vector<std::int64_t> slots_host_;
  Tensor k_, v_, slots_;
  PagedKvCache cache_;
  std::string backend_;
};

nlohmann::ordered_json measure(BenchDevice& device, const AppendCell& cell,
                               const std::string& backend, const BenchOptions& options,
                               double copy_gbps) {
  AppendProblem append(device, cell, backend);
  append.append();
  nlohmann::ordered_json equal = nullptr;
  if (options.check) equal = append.equals_reference();
  const double us =
      time_cold_us(device, append.arena(), options.repeats, [&append] { append.append(); });
  const auto bytes = static_cast<double>(append.bytes_read() + append.bytes_written());
  const double gbps = 1e-3 * bytes / us;
  return {{"kernel", "foscar " + backend + " quantize_append"},
          {"format", cell.format.name()},
          {"num_tokens", cell.num_tokens},
          {"num_kv_heads", cell.num_kv_heads},
          {"head_dim", cell.head_dim},
          {"page_size", cell.page_size},
          {"dtype", dtype_name(cell.dtype)},
          {"bytes_read", append.bytes_read()},
          {"bytes_written", append.bytes_written()},
          {"us", us},
          {"gbps", gbps},
          {"share_of_copy", gbps / copy_gbps},
          {"equals_reference", equal}};
}

std::vector<AppendCell> list_cells(const BenchAppendOptions& options) {
  const auto require = [](bool ok, const std::string& option, std::int64_t value,
                          const char* allowed) {
    if (ok) return;
    throw Error(ErrorKind::kInvalidArgument,
                option + ": got " + std::to_string(value) + ", expected " + allowed);
  };
  require(options.num_kv_heads >= 1, "--kv-heads", options.num_kv_heads, "at least 1");
  std::vector<AppendCell> cells;
  for (const std::string& name : options.formats) {
    for (const int page_size : options.page_sizes) {
      const KvFormat format = KvFormat::parse(name);
      const std::string problem = format_problem(format, options.head_dim, page_size);
      if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem);
      for (const std::string& dtype : options.dtypes) {
        for (const std::int64_t num_tokens : options.num_tokens) {
          require(num_tokens >= 1 && num_tokens <= 1 << 24, "--tokens", num_tokens,
                  "1 .. 16777216");
          cells.push_back({format, page_size, options.head_dim, options.num_kv_heads, num_tokens,
                           parse_dtype(dtype)});
        }
      }
    }
  }
  return cells;
}

}  // namespace

int bench_append_command(const BenchAppendOptions& options) {
  const std::vector<AppendCell> cells = list_cells(options);
  const ChosenBackend backend = choose_backend(options.backend);
  const std::unique_ptr<BenchDevice> device = make_bench_device(backend.device);
  nlohmann::ordered_json report = start_report(*device, options);
  const double copy_gbps = device->copy_ceiling_gbps();
  report["copy_ceiling_gbps"] = copy_gbps;
  report["records"] = nlohmann::ordered_json::array();
  bool all_equal = true;
  for (const AppendCell& cell : cells) {
    const nlohmann::ordered_json record = measure(*device, cell, backend.name, options, copy_gbps);
    fmt::print(stderr, "{} {} tokens of {}: {:.1f} us, {:.0f} GB/s, {:.1f} % of a copy\n",
               cell.format.name(), cell.num_tokens, dtype_name(cell.dtype),
               record["us"].get<double>(), record["gbps"].get<double>(),
               100 * record["share_of_copy"].get<double>());
    all_equal = all_equal && record["equals_reference"] != false;
    report["records"].push_back(record);
  }
  write_report(report, options);
  return all_equal ? kExitOk : kExitFailed;
}

}  // namespace foscar::tool
