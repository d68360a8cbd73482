// The pickle of a torch.save file as a tree of plain values, without executing anything it names. A pickle is a program
// for a stack machine; this reader knows the opcodes that build dictionaries, lists, tuples, numbers and text, and exactly
// three callables: torch._utils._rebuild_tensor_v2 (becomes a TensorRef), collections.OrderedDict and the storage types
// of torch. Everything else, any other global or opcode, is an Error{kFile} that names it.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foscar::io {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kSequence,
    kDict,
    kGlobal,
    kStorage,
    kTensor,
    kMark
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // also a bool
  double real = 0;
  std::string text;  // kText; kGlobal: "module name"; kStorage: key of its data; kTensor: key
  std::string type;  // kStorage, kTensor: "FloatStorage"
  std::vector<const PickleValue*> items;     // kSequence; kDict: key, value, key, value ...
  std::vector<std::int64_t> shape, strides;  // kTensor: elements
  std::int64_t offset = 0;                   // kTensor: elements into the storage

  // The value under a text or integer key of a dict, or null.
  const PickleValue* find(std::string_view key) const;
};

class RestrictedPickle {
 public:
  // `path` is for messages only.
  RestrictedPickle(const std::string& path, std::span<const std::uint8_t> program);
  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;  // owns every value, so cycles need no care
  const PickleValue* root_ = nullptr;
};

}  // namespace foscar::io
