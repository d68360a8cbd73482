// The one exception type of the library. A message names the argument, what was given and what is
// allowed; when an Error leaves a public function nothing was launched and nothing was written.
#pragma once

#include <stdexcept>
#include <string>

namespace foscar {

enum class ErrorKind {
  kInvalidArgument,  // a value, shape, stride or alignment that no backend accepts (Python: ValueError)
  kInvalidType,      // a dtype or device that the argument cannot have (Python: TypeError)
  kUnsupported,  // legal, but not offered by the chosen backend; the message names the nearest offer
  kRuntime,      // the device or the operating system failed (Python: RuntimeError)
  kFile,         // a file that cannot be read, or whose contents contradict themselves
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace foscar
