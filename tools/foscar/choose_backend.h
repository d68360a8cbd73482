// Which backend a command runs on, and so which device its tensors live on.
#pragma once

#include <string>

#include "foscar/tensor.h"

namespace foscar::tool {

struct ChosenBackend {
  std::string name;
  DeviceType device;
};

// `requested`, else FOSCAR_FORCE_BACKEND, else the best available one on a device that the tool can
// place tensors on. Throws as resolve_backend() does.
ChosenBackend choose_backend(const std::string& requested);

}  // namespace foscar::tool
