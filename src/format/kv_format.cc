// Names of formats, and the one place that says which combinations exist.
#include "foscar/format/kv_format.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <vector>

#include "foscar/error.h"
#include "foscar/layout/page_layout.h"

namespace foscar {
namespace {

constexpr std::string_view kGrammar =
    "k<bits>v<bits>-<axis>[-<v axis>]-g<group size>-<f32|f16|bf16>, for example "
    "k2v2-token-g128-f32";

[[noreturn]] void reject(std::string_view name, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "format: '" + std::string(name.substr(0, 80)) + "': " +
                                               what + "; expected " + std::string(kGrammar));
}

template <typename Range>
std::string join(const Range& values) {
  std::string text;
  for (int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

template <typename Range>
bool contains(const Range& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string_view axis_name(QuantAxis axis) {
  return axis == QuantAxis::kToken ? "token" : "channel";
}

std::vector<std::string_view> split(std::string_view name, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = name.find(separator);
    parts.push_back(name.substr(0, end));
    if (end == std::string_view::npos) return parts;
    name.remove_prefix(end + 1);
  }
}

int parse_int(std::string_view name, std::string_view digits, const char* what) {
  int value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || digits.empty() || value < 0) {
    reject(name, std::string(what) + " is '" + std::string(digits) + "', not a number");
  }
  return value;
}

std::string side_problem(const char* side, const SideFormat& format, int head_dim) {
  const std::string prefix = std::string(side) + "_bits: ";
  if (!contains(kSupportedBits, format.bits)) {
    return prefix + "got " + std::to_string(format.bits) + ", supported are " +
           join(kSupportedBits);
  }
  if (format.axis == QuantAxis::kChannel) {
    return std::string(side) + "_axis: channel-wise groups are not supported yet; use token";
  }
  if (!contains(kSupportedTokenGroupSizes, format.group_size) || format.group_size > head_dim ||
      head_dim % format.group_size != 0) {
    return "quant_group_size: got " + std::to_string(format.group_size) + " for head_dim " +
           std::to_string(head_dim) + ", supported are those of " +
           join(kSupportedTokenGroupSizes) + " that divide head_dim";
  }
  return {};
}

}  // namespace

KvFormat KvFormat::parse(std::string_view name) {
  const std::vector<std::string_view> parts = split(name, '-');
  if (parts.size() < 4 || parts.size() > 5) {
    reject(name, "has " + std::to_string(parts.size()) + " parts");
  }
  KvFormat format;

  const std::string_view bits = parts.front();
  const std::size_t v_at = bits.find('v');
  if (bits.empty() || bits.front() != 'k' || v_at == std::string_view::npos) {
    reject(name, "starts with '" + std::string(bits) + "'");
  }
  format.k.bits = parse_int(name, bits.substr(1, v_at - 1), "k_bits");
  format.v.bits = parse_int(name, bits.substr(v_at + 1), "v_bits");
  for (const int side_bits : {format.k.bits, format.v.bits}) {
    if (!contains(kSupportedBits, side_bits)) {
      reject(name,
             "bits are " + std::to_string(side_bits) + ", supported are " + join(kSupportedBits));
    }
  }

  const auto axis = [&](std::string_view text) {
    if (text == "token") return QuantAxis::kToken;
    if (text == "channel") return QuantAxis::kChannel;
    reject(name, "axis is '" + std::string(text) + "', expected token or channel");
  };
  format.k.axis = axis(parts[1]);
  format.v.axis = parts.size() == 5 ? axis(parts[2]) : format.k.axis;
  if (parts.size() == 5 && format.v.axis == format.k.axis) reject(name, "names one axis twice");

  const std::string_view group = parts[parts.size() - 2];
  if (group.empty() || group.front() != 'g') reject(name, "group is '" + std::string(group) + "'");
  const int group_size = parse_int(name, group.substr(1), "the group size");
  if (!contains(kSupportedTokenGroupSizes, group_size)) {
    reject(name, "group size is " + std::to_string(group_size) + ", supported are " +
                     join(kSupportedTokenGroupSizes));
  }
  format.k.group_size = format.v.group_size = group_size;

  const std::string_view params = parts.back();
  if (params == "f32") {
    format.param_dtype = DType::kF32;
  } else if (params == "f16") {
    format.param_dtype = DType::kF16;
  } else if (params == "bf16") {
    format.param_dtype = DType::kBF16;
  } else {
    reject(name, "parameter type is '" + std::string(params) + "'");
  }
  return format;
}

std::string KvFormat::name() const {
  std::string text = "k";
  text.append(std::to_string(k.bits)).append("v").append(std::to_string(v.bits));
  text.append("-").append(axis_name(k.axis));
  if (v.axis != k.axis) text.append("-").append(axis_name(v.axis));
  text.append("-g").append(std::to_string(k.group_size));
  return text.append(param_dtype == DType::kF32 ? "-f32"
                                                : (param_dtype == DType::kF16 ? "-f16" : "-bf16"));
}

std::string format_problem(const KvFormat& format, int head_dim, int page_size) {
  if (!contains(kSupportedHeadDims, head_dim)) {
    return "head_dim: got " + std::to_string(head_dim) + ", supported are " +
           join(kSupportedHeadDims);
  }
  if (page_size < 1 || page_size > kMaxPageSize ||
      !std::has_single_bit(static_cast<unsigned>(page_size))) {
    return "page_size: got " + std::to_string(page_size) +
           ", supported are the powers of two 1 .. " + std::to_string(kMaxPageSize);
  }
  if (format.param_dtype != DType::kF32 && format.param_dtype != DType::kF16 &&
      format.param_dtype != DType::kBF16) {
    return "param_dtype: got " + std::string(dtype_name(format.param_dtype)) +
           ", supported are float32, float16, bfloat16";
  }
  if (const std::string problem = side_problem("k", format.k, head_dim); !problem.empty())
    return problem;
  return side_problem("v", format.v, head_dim);
}

double bits_per_element(const KvFormat& format, int head_dim, int page_size) {
  if (const std::string problem = format_problem(format, head_dim, page_size); !problem.empty()) {
    throw Error(ErrorKind::kInvalidArgument, problem);
  }
  const PageLayout layout = make_page_layout(format, head_dim, page_size);
  return layout.page_head_bytes * 8.0 / (2.0 * page_size * head_dim);
}

}  // namespace foscar
