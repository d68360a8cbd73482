// A header comes from anywhere, so it is read as a stream of events by a strict state machine: no
// tree is built, memory stays proportional to the tensors that exist, and nesting cannot run deep.
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/file_error.h"

namespace foscar::io {
namespace {

using Json = nlohmann::json;

struct DTypeRow {
  std::string_view name;
  int bytes;
  std::optional<DType> dtype;
};

constexpr std::array kDTypes{
    DTypeRow{"F32", 4, DType::kF32},
    DTypeRow{"F16", 2, DType::kF16},
    DTypeRow{"BF16", 2, DType::kBF16},
    DTypeRow{"U8", 1, DType::kU8},
    DTypeRow{"I32", 4, DType::kI32},
    DTypeRow{"I64", 8, DType::kI64},
    DTypeRow{"F64", 8, {}},
    DTypeRow{"U64", 8, {}},
    DTypeRow{"U32", 4, {}},
    DTypeRow{"I16", 2, {}},
    DTypeRow{"U16", 2, {}},
    DTypeRow{"I8", 1, {}},
    DTypeRow{"BOOL", 1, {}},
    DTypeRow{"F8_E4M3", 1, {}},
    DTypeRow{"F8_E5M2", 1, {}},
    DTypeRow{"F8_E8M0", 1, {}},
};

constexpr std::size_t kMaxRank = 16;

// Collects one header. Every event either fits the state or throws.
class HeaderEvents final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderEvents(const std::string& path) : path_(path) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override {
    return unexpected(printable(text));
  }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets)
      return unexpected(std::to_string(value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return unexpected(std::to_string(value));
    }
    std::vector<std::int64_t>& numbers = state_ == State::kShape ? info_.shape : offsets_;
    if (numbers.size() >= (state_ == State::kShape ? kMaxRank : 2)) {
      reject_file(path_, part(),
                  "more than " + std::to_string(numbers.size()) + " numbers in '" + key_ + "'",
                  state_ == State::kShape ? "at most 16 dimensions" : "[begin, end]");
    }
    numbers.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(std::string& text) override {
    if (state_ == State::kMetadata) {
      if (!header_.metadata.emplace(key_, std::move(text)).second) duplicate(key_);
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype")
      return unexpected("text '" + printable(text) + "'");
    info_.dtype_name = std::move(text);
    return true;
  }

  bool key(std::string& name) override {
    key_ = std::move(name);
    if (state_ == State::kTensor) {
      bool* seen = key_ == "dtype" ? &seen_dtype_ : key_ == "shape" ? &seen_shape_ : nullptr;
      if (key_ == "data_offsets") seen = &seen_offsets_;
      if (seen == nullptr) {
        reject_file(path_, part(), "field '" + printable(key_) + "'",
                    "dtype, shape and data_offsets");
      }
      if (std::exchange(*seen, true)) duplicate(key_);
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && key_ == "__metadata__") {
      if (std::exchange(seen_metadata_, true)) duplicate(key_);
      state_ = State::kMetadata;
    } else if (state_ == State::kTop) {
      state_ = State::kTensor;
      info_ = TensorInfo{};
      info_.name = key_;
      offsets_.clear();
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) finish_tensor();
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return unexpected("an array");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    reject_file(path_, "header", "malformed JSON at byte " + std::to_string(position),
                "a JSON object");
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  std::string part() const {
    const bool in_tensor =
        state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets;
    return in_tensor ? tensor_part(info_.name) : "header";
  }

  bool unexpected(const std::string& found) const {
    switch (state_) {
      case State::kStart:
      case State::kEnd: reject_file(path_, "header", found, "a JSON object");
      case State::kTop:
        reject_file(path_, tensor_part(key_), found,
                    "an object with dtype, shape and data_offsets");
      case State::kMetadata:
        reject_file(path_, "header", found + " in __metadata__ '" + printable(key_) + "'", "text");
      case State::kTensor:
        reject_file(path_, part(), found + " as '" + key_ + "'",
                    key_ == "dtype" ? "a type name such as \"BF16\"" : "an array of whole numbers");
      case State::kShape:
      case State::kOffsets:
        reject_file(path_, part(), found + " in '" + key_ + "'",
                    "whole numbers from 0 to 2^63 - 1");
    }
    return false;
  }

  [[noreturn]] void duplicate(const std::string& name) const {
    reject_file(path_, part(), "'" + printable(name) + "' twice", "every name once");
  }

  void finish_tensor() {
    if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
      const char* absent = !seen_dtype_ ? "dtype" : !seen_shape_ ? "shape" : "data_offsets";
      reject_file(path_, part(), std::string("no '") + absent + "'",
                  "dtype, shape and data_offsets");
    }
    const auto row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeRow& r) { return r.name == info_.dtype_name; });
    if (row == kDTypes.end()) {
      std::string known;
      for (const DTypeRow& r : kDTypes) known += (known.empty() ? "" : ", ") + std::string(r.name);
      reject_file(path_, part(), "dtype '" + printable(info_.dtype_name) + "'", "one of " + known);
    }
    info_.dtype = row->dtype;

    std::int64_t needed = row->bytes;
    for (const std::int64_t extent : info_.shape) {
      if (__builtin_mul_overflow(needed, extent, &needed)) {
        reject_file(path_, part(), "shape " + shape_text(info_.shape),
                    "fewer than 2^63 bytes in all");
      }
    }
    const std::string offsets = "data_offsets " + shape_text(offsets_);
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      reject_file(path_, part(), offsets, "[begin, end] with begin <= end");
    }
    info_.begin = offsets_[0];
    info_.bytes = offsets_[1] - offsets_[0];
    if (info_.bytes != needed) {
      reject_file(path_, part(), offsets + " (" + std::to_string(info_.bytes) + " bytes)",
                  std::to_string(needed) + " bytes for " + info_.dtype_name + " " +
                      shape_text(info_.shape));
    }
    if (!header_.tensors.emplace(info_.name, info_).second) duplicate(info_.name);
  }

  const std::string& path_;
  SafetensorsHeader header_;
  State state_ = State::kStart;
  std::string key_;  // the last key read; below the top level one of the known field names
  TensorInfo info_;
  std::vector<std::int64_t> offsets_;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  bool seen_metadata_ = false;
};

// The tensors, in file order, must be the data: each begins where the one before ends.
void check_coverage(const std::string& path, const SafetensorsHeader& header,
                    std::int64_t data_bytes) {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : header.tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
  });
  std::int64_t end = 0;
  for (const TensorInfo* info : order) {
    const std::string found =
        "data_offsets " + shape_text(std::array{info->begin, info->begin + info->bytes});
    if (info->begin != end) {
      reject_file(path, tensor_part(info->name), found,
                  "begin " + std::to_string(end) + " (no holes, no overlaps)");
    }
    end = info->begin + info->bytes;
    if (end > data_bytes) {
      reject_file(path, tensor_part(info->name), found,
                  "an end within the file's " + std::to_string(data_bytes) + " bytes of data");
    }
  }
  if (end != data_bytes) {
    reject_file(path, "file", std::to_string(data_bytes) + " bytes of data",
                std::to_string(end) + ", the end of the last tensor");
  }
}

}  // namespace

std::string_view safetensors_dtype_name(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

SafetensorsHeader parse_header(const std::string& path, std::string_view json,
                               std::int64_t data_bytes) {
  HeaderEvents events(path);
  Json::sax_parse(json, &events);
  SafetensorsHeader header = events.take();
  check_coverage(path, header, data_bytes);
  return header;
}

}  // namespace foscar::io
