#include "io/restricted_pickle.h"

#include <bit>
#include <map>
#include <string_view>
#include <utility>

#include "io/file_error.h"

namespace foscar::io {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kOrderedDict = "collections OrderedDict";

bool is_storage_type(std::string_view global) {
  return global.starts_with("torch ") && global.ends_with("Storage");
}

class Machine {
 public:
  Machine(const std::string& path, std::span<const std::uint8_t> program,
          std::deque<PickleValue>& values)
      : path_(path), program_(program), values_(values) {}

  const PickleValue* run() {
    for (;;) {
      const int opcode = byte();
      if (opcode == '.') return pop();
      step(opcode);
    }
  }

 private:
  [[noreturn]] void reject(const std::string& found) const {
    reject_file(path_, "pickle", found + " at byte " + std::to_string(at_),
                "dictionaries, lists, numbers, text and tensors only");
  }

  int byte() {
    if (at_ >= program_.size()) reject("the end of the data");
    return program_[at_++];
  }
  std::uint64_t number(int width) {
    std::uint64_t value = 0;
    for (int i = 0; i < width; ++i) value |= std::uint64_t(byte()) << (8 * i);
    return value;
  }
  std::string text(std::uint64_t length) {
    if (length > program_.size() - at_) reject("text beyond the end of the data");
    std::string result(reinterpret_cast<const char*>(program_.data() + at_), length);
    at_ += length;
    return result;
  }
  std::string line() {
    std::string result;
    for (int c = byte(); c != '\n'; c = byte()) result += static_cast<char>(c);
    return result;
  }

  PickleValue* make(Kind kind) {
    values_.emplace_back();
    values_.back().kind = kind;
    return &values_.back();
  }
  void push(PickleValue* value) { stack_.push_back(value); }
  void push_int(std::int64_t value) {
    push(make(Kind::kInt));
    stack_.back()->integer = value;
  }
  void push_text(std::string value) {
    push(make(Kind::kText));
    stack_.back()->text = std::move(value);
  }
  PickleValue* top() {
    if (stack_.empty()) reject("an empty stack");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<const PickleValue*> pop_to_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1]->kind != Kind::kMark) --mark;
    if (mark == 0) reject("no mark");
    std::vector<const PickleValue*> items(stack_.begin() + std::ptrdiff_t(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  void push_tuple(std::size_t count) {
    PickleValue* tuple = make(Kind::kSequence);
    tuple->items.resize(count);
    for (std::size_t i = count; i-- > 0;) tuple->items[i] = pop();
    push(tuple);
  }
  void extend(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* target = top();
    if (target->kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) {
      reject("items for what holds none");
    }
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  void push_global(const std::string& name) {
    if (name != kRebuildTensor && name != kOrderedDict && !is_storage_type(name)) {
      reject("the name '" + printable(name) + "', which would be called");
    }
    push(make(Kind::kGlobal));
    stack_.back()->text = name;
  }

  // ('storage', type, key, device, elements)
  void persistent_id() {
    const PickleValue* id = pop();
    const auto& items = id->items;
    if (id->kind != Kind::kSequence || items.size() != 5 || items[0]->text != "storage" ||
        items[1]->kind != Kind::kGlobal || !is_storage_type(items[1]->text) ||
        items[2]->kind != Kind::kText) {
      reject("a persistent id of unknown form");
    }
    PickleValue* storage = make(Kind::kStorage);
    storage->type = items[1]->text.substr(std::string_view("torch ").size());
    storage->text = items[2]->text;
    push(storage);
  }

  std::vector<std::int64_t> integers(const PickleValue* tuple) const {
    std::vector<std::int64_t> result;
    if (tuple->kind != Kind::kSequence) reject("a shape that is no tuple");
    for (const PickleValue* item : tuple->items) {
      if (item->kind != Kind::kInt || item->integer < 0)
        reject("a shape with a part that is no size");
      result.push_back(item->integer);
    }
    return result;
  }

  void reduce() {
    const PickleValue* arguments = pop();
    const PickleValue* callable = pop();
    if (callable->kind != Kind::kGlobal || arguments->kind != Kind::kSequence) reject("a call");
    const auto& items = arguments->items;
    if (callable->text == kOrderedDict && items.empty()) {
      push(make(Kind::kDict));
      return;
    }
    // (storage, offset, shape, strides, requires_grad, hooks)
    if (callable->text != kRebuildTensor || items.size() < 4 || items[0]->kind != Kind::kStorage ||
        items[1]->kind != Kind::kInt) {
      reject("a call of '" + printable(callable->text) + "' with unknown arguments");
    }
    PickleValue* tensor = make(Kind::kTensor);
    tensor->type = items[0]->type;
    tensor->text = items[0]->text;
    tensor->offset = items[1]->integer;
    tensor->shape = integers(items[2]);
    tensor->strides = integers(items[3]);
    if (tensor->shape.size() != tensor->strides.size())
      reject("a tensor with other ranks of shape and strides");
    push(tensor);
  }

  void memoize(std::uint64_t slot) { memo_[slot] = top(); }
  void recall(std::uint64_t slot) {
    const auto it = memo_.find(slot);
    if (it == memo_.end()) reject("a value that was never stored");
    push(it->second);
  }

  void step(int opcode) {
    switch (opcode) {
      case 0x80: byte(); return;     // PROTO
      case 0x95: number(8); return;  // FRAME
      case '}': push(make(Kind::kDict)); return;
      case ']':
      case ')': push(make(Kind::kSequence)); return;
      case '(': push(make(Kind::kMark)); return;
      case 'N': push(make(Kind::kNone)); return;
      case 0x88:
      case 0x89:
        push(make(Kind::kBool));
        stack_.back()->integer = opcode == 0x88;
        return;
      case 'K': push_int(byte()); return;
      case 'M': push_int(std::int64_t(number(2))); return;
      case 'J': push_int(static_cast<std::int32_t>(number(4))); return;
      case 0x8a: {  // LONG1: little-endian two's complement
        const int width = byte();
        if (width > 8) reject("a number of more than 64 bits");
        std::uint64_t value = number(width);
        if (width > 0 && width < 8 && value >> (8 * width - 1))
          value |= ~std::uint64_t{0} << (8 * width);
        push_int(static_cast<std::int64_t>(value));
        return;
      }
      case 'G': {  // BINFLOAT: big-endian
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | std::uint64_t(byte());
        push(make(Kind::kFloat));
        stack_.back()->real = std::bit_cast<double>(value);
        return;
      }
      case 'X': push_text(text(number(4))); return;
      case 0x8c: push_text(text(number(1))); return;
      case 't': {
        PickleValue* tuple = make(Kind::kSequence);
        tuple->items = pop_to_mark();
        push(tuple);
        return;
      }
      case 0x85: push_tuple(1); return;
      case 0x86: push_tuple(2); return;
      case 0x87: push_tuple(3); return;
      case 'q': memoize(number(1)); return;
      case 'r': memoize(number(4)); return;
      case 0x94: memoize(memo_.size()); return;
      case 'h': recall(number(1)); return;
      case 'j': recall(number(4)); return;
      case 'u': {
        const auto items = pop_to_mark();
        extend(Kind::kDict, items);
        return;
      }
      case 's': {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        extend(Kind::kDict, {key, value});
        return;
      }
      case 'e': {
        const auto items = pop_to_mark();
        extend(Kind::kSequence, items);
        return;
      }
      case 'a': {
        const PickleValue* value = pop();
        extend(Kind::kSequence, {value});
        return;
      }
      case 'c': {
        const std::string module = line();
        push_global(module + " " + line());
        return;
      }
      case 0x93: {  // STACK_GLOBAL
        const PickleValue* name = pop();
        const PickleValue* module = pop();
        push_global(module->text + " " + name->text);
        return;
      }
      case 'Q': persistent_id(); return;
      case 'R': reduce(); return;
      default: reject("opcode " + std::to_string(opcode));
    }
  }

  const std::string& path_;
  std::span<const std::uint8_t> program_;
  std::deque<PickleValue>& values_;
  std::size_t at_ = 0;
  std::vector<PickleValue*> stack_;
  std::map<std::uint64_t, PickleValue*> memo_;
};

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->kind == Kind::kText && items[i]->text == key) return items[i + 1];
  }
  return nullptr;
}

RestrictedPickle::RestrictedPickle(const std::string& path, std::span<const std::uint8_t> program)
    : root_(Machine(path, program, values_).run()) {}

}  // namespace foscar::io
