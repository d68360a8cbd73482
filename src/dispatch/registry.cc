// Collects the backends' tables and picks one by name, environment or order.
#include <cstdlib>
#include <vector>

#include "dispatch/backend.h"
#include "foscar/error.h"

namespace foscar {
namespace {

std::string_view device_name(DeviceType device) {
  return device == DeviceType::kCpu ? "CPU" : "CUDA";
}

std::string known_names() {
  std::string names;
  for (const Backend* backend : all_backends()) {
    names += (names.empty() ? "" : ", ") + std::string(backend->name);
  }
  return names + ", cpu (the best cpu-* of this machine)";
}

}  // namespace

// Tables are sorted best first.
const Backend& best_backend(DeviceType device) {
  std::string reasons;
  for (const Backend* backend : all_backends()) {
    if (backend->device != device) continue;
    const std::string reason = backend->unavailable_reason();
    if (reason.empty()) return *backend;
    reasons += "; " + std::string(backend->name) + ": " + reason;
  }
  throw Error(ErrorKind::kUnsupported, "backend: no backend for " +
                                           std::string(device_name(device)) +
                                           " tensors is available" + reasons);
}

std::span<const Backend* const> all_backends() {
  static const std::vector<const Backend*> backends = [] {
    std::vector<const Backend*> all;
    const auto add = [&all](std::span<const Backend> table) {
      for (const Backend& backend : table) all.push_back(&backend);
    };
#if FOSCAR_WITH_CUDA
    add(cuda_backends());
#endif
    add(cpu_backends());
    add(reference_backends());
    return all;
  }();
  return backends;
}

const Backend& find_backend(DeviceType device, std::string_view requested) {
  std::string_view source = "backend";
  if (requested.empty()) {
    const char* forced = std::getenv("FOSCAR_FORCE_BACKEND");
    if (forced == nullptr || *forced == '\0') return best_backend(device);
    requested = forced;
    source = "FOSCAR_FORCE_BACKEND";
  }
  if (requested == "cpu") {
    if (device == DeviceType::kCpu) return best_backend(device);
    throw Error(ErrorKind::kUnsupported, std::string(source) + ": 'cpu' takes CPU tensors, got " +
                                             std::string(device_name(device)));
  }
  for (const Backend* backend : all_backends()) {
    if (backend->name != requested) continue;
    if (backend->device != device) {
      throw Error(ErrorKind::kUnsupported, std::string(source) + ": '" + std::string(requested) +
                                               "' takes " +
                                               std::string(device_name(backend->device)) +
                                               " tensors, got " + std::string(device_name(device)));
    }
    const std::string reason = backend->unavailable_reason();
    if (!reason.empty()) {
      throw Error(ErrorKind::kUnsupported, std::string(source) + ": '" + std::string(requested) +
                                               "' is not available: " + reason);
    }
    return *backend;
  }
  throw Error(ErrorKind::kInvalidArgument, std::string(source) + ": unknown name '" +
                                               std::string(requested) + "', known are " +
                                               known_names());
}

std::vector<BackendInfo> list_backends() {
  std::vector<BackendInfo> infos;
  for (const Backend* backend : all_backends()) {
    const std::string reason = backend->unavailable_reason();
    infos.push_back({std::string(backend->name), backend->device, reason.empty(),
                     reason.empty() ? std::string(backend->description) : reason});
  }
  return infos;
}

Support supported(const DecodeDesc& desc, std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (backend->name != name) continue;
    const std::string reason = backend->unavailable_reason();
    if (!reason.empty()) return {false, reason};
    return backend->supports(desc);
  }
  return {false, "backend: unknown name '" + std::string(name) + "', known are " + known_names()};
}

std::string resolve_backend(DeviceType device, std::string_view requested) {
  return std::string(find_backend(device, requested).name);
}

}  // namespace foscar
