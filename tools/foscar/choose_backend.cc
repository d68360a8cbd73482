#include "choose_backend.h"

#include <cstdlib>

#include "device_arena.h"
#include "foscar/backends.h"

namespace foscar::tool {

ChosenBackend choose_backend(const std::string& requested) {
  std::string name = requested;
  if (const char* forced = std::getenv("FOSCAR_FORCE_BACKEND"); name.empty() && forced != nullptr)
    name = forced;
  DeviceType device = DeviceType::kCpu;
  for (const BackendInfo& info : list_backends()) {
    const bool wanted = name.empty() ? info.available && has_arena(info.device) : info.name == name;
    if (wanted) {
      device = info.device;
      break;
    }
  }
  return {resolve_backend(device, requested), device};
}

}  // namespace foscar::tool
