// foscar run: decode attention over a low-bit cache of given keys and values, against BF16 and
// against the truth.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "choose_backend.h"
#include "commands.h"
#include "decode_job.h"
#include "io/file_error.h"
#include "io/safetensors_writer.h"
#include "text_report.h"

namespace foscar::tool {
namespace {

struct Measurement {
  std::int64_t kv_bytes_bf16;
  std::int64_t kv_bytes;
  double rel_error_vs_dequantized;  // kernel error: against attention over scale * code + offset
  double rel_error_vs_unquantized;  // quantization error: against attention over the input
  double decode_us;
  std::optional<double> bf16_us;  // empty where the backend decodes low-bit pages only

  double compression() const {
    return static_cast<double>(kv_bytes_bf16) / static_cast<double>(kv_bytes);
  }
  std::optional<double> speedup() const {
    if (!bf16_us) return {};
    return *bf16_us / decode_us;
  }
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Medians of both decodes, timed in turns, so that a change of the machine's state hits both.
std::pair<double, std::optional<double>> time_in_turns(DecodeJob& job) {
  constexpr std::size_t kMinRounds = 7;
  constexpr std::size_t kMaxRounds = 300;
  constexpr double kBudgetUs = 1.5e6;
  const auto low_bit = [&job] { job.decode(); };
  const auto bf16 = [&job] { job.decode_bf16(); };
  bool has_bf16 = true;
  for (int i = 0; i < 2; ++i) {  // touches every page and wakes the threads
    low_bit();
    has_bf16 = job.try_decode_bf16();
  }
  std::vector<double> low_bit_us;
  std::vector<double> bf16_us;
  double total_us = 0;
  while (low_bit_us.size() < kMinRounds ||
         (total_us < kBudgetUs && low_bit_us.size() < kMaxRounds)) {
    low_bit_us.push_back(job.arena().time_us(low_bit));
    total_us += low_bit_us.back();
    if (!has_bf16) continue;
    bf16_us.push_back(job.arena().time_us(bf16));
    total_us += bf16_us.back();
  }
  if (!has_bf16) return {median(std::move(low_bit_us)), {}};
  return {median(std::move(low_bit_us)), median(std::move(bf16_us))};
}

Measurement measure(DecodeJob& job, const KvInput& input) {
  const auto [decode_us, bf16_us] = time_in_turns(job);
  const std::vector<float> o = job.output().o.to_float();
  return {
      .kv_bytes_bf16 = job.kv_bytes_bf16(),
      .kv_bytes = job.kv_bytes(),
      .rel_error_vs_dequantized = relative_error(o, job.oracle(job.dequantized_by_reference()).o),
      .rel_error_vs_unquantized = relative_error(o, job.oracle({input.k, input.v}).o),
      .decode_us = decode_us,
      .bf16_us = bf16_us};
}

void print_json(const KvInput& input, const JobSetup& setup, const Measurement& m) {
  const auto or_null = [](std::optional<double> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json report{{"backend", setup.backend},
                                      {"format", setup.format.name()},
                                      {"batch_size", input.batch_size()},
                                      {"kv_len", input.max_kv_len()},
                                      {"num_qo_heads", input.num_qo_heads()},
                                      {"num_kv_heads", input.num_kv_heads()},
                                      {"head_dim", input.head_dim()},
                                      {"page_size", setup.page_size},
                                      {"kv_bytes_bf16", m.kv_bytes_bf16},
                                      {"kv_bytes", m.kv_bytes},
                                      {"compression", m.compression()},
                                      {"rel_error_vs_dequantized", m.rel_error_vs_dequantized},
                                      {"rel_error_vs_unquantized", m.rel_error_vs_unquantized},
                                      {"decode_us", m.decode_us},
                                      {"bf16_us", or_null(m.bf16_us)},
                                      {"speedup", or_null(m.speedup())}};
  fmt::print("{}\n", report.dump(2));
}

void print_table(const KvInput& input, const JobSetup& setup, const Measurement& m) {
  const std::string format = setup.format.name();
  fmt::print("{} on {}: batch {}, {} tokens, {}/{} heads, head_dim {}, pages of {}\n", format,
             setup.backend, input.batch_size(), input.max_kv_len(), input.num_qo_heads(),
             input.num_kv_heads(), input.head_dim(), setup.page_size);
  const auto row = [](const std::string& name, const std::string& bf16, const std::string& low_bit,
                      const std::string& ratio) {
    fmt::print("  {:<22}{:>12}{:>24}   {}\n", name, bf16, low_bit, ratio);
  };
  row("", "BF16", format, "");
  row("KV bytes", bytes_text(m.kv_bytes_bf16), bytes_text(m.kv_bytes),
      fmt::format("{:.2f}x smaller", m.compression()));
  row("decode", m.bf16_us ? time_text(*m.bf16_us) : "not offered", time_text(m.decode_us),
      m.bf16_us ? fmt::format("{:.2f}x the speed", *m.speedup()) : "");
  row("error of the kernel", "", error_text(m.rel_error_vs_dequantized),
      "against the dequantized cache");
  row("error of the format", "", error_text(m.rel_error_vs_unquantized),
      "against the unquantized input");
}

void write_output(const std::string& path, const DecodeOutput& output) {
  const std::array<io::NamedTensor, 2> tensors{
      io::NamedTensor{"o", output.o.dtype, output.o.shape, output.o.bytes.data()},
      io::NamedTensor{"lse", output.lse.dtype, output.lse.shape, output.lse.bytes.data()}};
  io::write_safetensors(path, tensors, {});
}

}  // namespace

int run_command(const RunOptions& options) {
  if (options.threads > 0)
    ::setenv("FOSCAR_NUM_THREADS", std::to_string(options.threads).c_str(), 1);
  const ChosenBackend backend = choose_backend(options.backend);
  const JobSetup setup{.format = KvFormat::parse(options.format),
                       .page_size = options.page_size,
                       .backend = backend.name,
                       .device = backend.device};
  KvInput input = options.input.empty() ? generate_kv_input(options.synthetic)
                                        : load_kv_input(options.input, QueryUse::kRequired);
  if (options.extend_to > 0) input = extend_kv_input(input, options.extend_to);
  if (input.num_tokens() == 0) {
    io::reject_file(options.input, "tensor 'kv_len'", "no tokens in any request", "at least one");
  }
  check_format(setup.format, input, setup.page_size, options.input);

  DecodeJob job(input, setup);
  const Measurement measurement = measure(job, input);
  if (!options.output.empty()) write_output(options.output, job.output());
  if (options.json) {
    print_json(input, setup, measurement);
  } else {
    print_table(input, setup, measurement);
  }
  return kExitOk;
}

}  // namespace foscar::tool
