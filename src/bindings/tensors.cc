// See tensors.h.
#include "bindings/tensors.h"

#include <tvm/ffi/extra/c_env_api.h>

#include <limits>
#include <string>

namespace foscar::bindings {
namespace {

std::string dtype_text(DLDataType dtype) {
  const ffi::String text = ffi::DLDataTypeToString(dtype);
  return {text.data(), text.size()};
}

DType dtype(const char* name, DLDataType given) {
  if (given.lanes == 1) {
    switch (given.code) {
      case kDLFloat:
        if (given.bits == 32) return DType::kF32;
        if (given.bits == 16) return DType::kF16;
        break;
      case kDLBfloat:
        if (given.bits == 16) return DType::kBF16;
        break;
      case kDLUInt:
        if (given.bits == 8) return DType::kU8;
        break;
      case kDLInt:
        if (given.bits == 32) return DType::kI32;
        if (given.bits == 64) return DType::kI64;
        break;
      default: break;
    }
  }
  throw Error(ErrorKind::kInvalidType,
              std::string(name) + ": got " + dtype_text(given) +
                  ", allowed float32, float16, bfloat16, uint8, int32 or int64");
}

Device device(const char* name, DLDevice given) {
  if (given.device_type == kDLCPU || given.device_type == kDLCUDAHost) return {};
  if (given.device_type == kDLCUDA) return {DeviceType::kCuda, given.device_id};
  throw Error(ErrorKind::kInvalidType,
              std::string(name) + ": got a tensor on a device of DLPack type " +
                  std::to_string(given.device_type) + ", allowed CPU or CUDA");
}

}  // namespace

Tensor view(const char* name, const ffi::TensorView& t) {
  const int ndim = t.ndim();
  if (ndim > Tensor::kMaxDims) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name) + ": got " + std::to_string(ndim) +
                                                 " dimensions, allowed 0 to " +
                                                 std::to_string(Tensor::kMaxDims));
  }
  Tensor result{.data = static_cast<char*>(t.data_ptr()) + t.byte_offset(),
                .dtype = dtype(name, t.dtype()),
                .device = device(name, t.device()),
                .ndim = ndim};
  for (int i = 0; i < ndim; ++i) {
    result.shape[static_cast<std::size_t>(i)] = t.size(i);
    result.strides[static_cast<std::size_t>(i)] = t.stride(i);
  }
  return result;
}

Tensor view(const char* name, const OptionalTensor& t) {
  return t.has_value() ? view(name, t.value()) : Tensor{};
}

PageTable table(const OptionalTensor& block_table, const OptionalTensor& kv_len,
                const OptionalTensor& kv_indptr, const OptionalTensor& kv_indices,
                const OptionalTensor& kv_last_page_len) {
  return {.kv_indptr = view("kv_indptr", kv_indptr),
          .kv_indices = view("kv_indices", kv_indices),
          .kv_last_page_len = view("kv_last_page_len", kv_last_page_len),
          .block_table = view("block_table", block_table),
          .kv_len = view("kv_len", kv_len)};
}

PagedKvCache cache(const ffi::TensorView& pool, const ffi::String& format, std::int64_t head_dim,
                   std::int64_t page_size, const PageTable& table) {
  return {.format = KvFormat::parse(std::string_view(format.data(), format.size())),
          .head_dim = narrow("head_dim", head_dim),
          .page_size = narrow("page_size", page_size),
          .pool = view("pool", pool),
          .table = table};
}

ExecutionContext context(const Tensor& t, std::string_view backend) {
  ExecutionContext result{.backend = backend};
  if (t.device.type == DeviceType::kCuda) {
    result.stream = TVMFFIEnvGetStream(kDLCUDA, t.device.index);
  }
  return result;
}

void use_workspace(ExecutionContext& where, const Tensor& workspace, Device device) {
  if (!workspace.defined()) return;
  if (workspace.device != device) {
    throw Error(ErrorKind::kInvalidType,
                "workspace: got a tensor on another device than q, allowed that of q");
  }
  if (workspace.dtype != DType::kU8) {
    throw Error(ErrorKind::kInvalidType,
                "workspace: got " + std::string(dtype_name(workspace.dtype)) + ", allowed uint8");
  }
  if (workspace.ndim != 1 || (workspace.shape[0] > 1 && workspace.strides[0] != 1)) {
    throw Error(ErrorKind::kInvalidArgument, "workspace: got " + std::to_string(workspace.ndim) +
                                                 " dimensions, allowed one, contiguous");
  }
  where.workspace = workspace.data;
  where.workspace_bytes = workspace.shape[0];
}

int narrow(const char* name, std::int64_t value) {
  if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) {
    return static_cast<int>(value);
  }
  throw Error(ErrorKind::kInvalidArgument, std::string(name) + ": got " + std::to_string(value) +
                                               ", allowed values of an int32");
}

void rethrow(const Error& error) {
  const char* kind = "RuntimeError";
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument: kind = "ValueError"; break;
    case ErrorKind::kInvalidType: kind = "TypeError"; break;
    case ErrorKind::kUnsupported: kind = "NotImplementedError"; break;
    case ErrorKind::kRuntime: break;
    case ErrorKind::kFile: kind = "OSError"; break;
  }
  throw ffi::Error(kind, error.what(), std::string());
}

}  // namespace foscar::bindings
