// Which backends exist here, and what they can do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "foscar/format/kv_format.h"
#include "foscar/tensor.h"

namespace foscar {

// A decode problem as far as support depends on it.
struct DecodeDesc {
  KvFormat format;
  int head_dim = 128;
  int page_size = 64;
  int num_qo_heads = 0;
  int num_kv_heads = 0;
  int qo_len = 1;
  DType q_dtype = DType::kBF16;
  // Which options of DecodeParams are used.
  bool window_left = false;
  bool mask = false;
  bool logits_soft_cap = false;
  bool sinks = false;
};

struct BackendInfo {
  std::string name;         // what ExecutionContext::backend and FOSCAR_FORCE_BACKEND accept
  DeviceType device;        // of the tensors that it takes
  bool available;           // on this machine
  std::string description;  // one line: what it is, or why it is not available
};

// All backends compiled in, best first within a device.
std::vector<BackendInfo> list_backends();

// Whether `backend` can run the problem. `reason` says why not and names the nearest supported alternative.
struct Support {
  bool ok;
  std::string reason;
};
Support supported(const DecodeDesc& desc, std::string_view backend);

// The backend that a call on tensors of `device` would run on: `requested` if not empty, else
// FOSCAR_FORCE_BACKEND if it is set, else the best available. Throws Error{kInvalidArgument} for an unknown name,
// Error{kUnsupported} for one that is not available or serves another device.
std::string resolve_backend(DeviceType device, std::string_view requested = {});

}  // namespace foscar
