// Functions that touch no tensor: what exists, how large it is, what runs where.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <string>

#include "bindings/tensors.h"

namespace foscar::bindings {
namespace {

DType query_dtype(std::string_view name) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  throw Error(ErrorKind::kInvalidType,
              "q_dtype: got '" + std::string(name) + "', allowed bfloat16, float16 or float32");
}

KvFormat parse(const ffi::String& name) {
  return KvFormat::parse(std::string_view(name.data(), name.size()));
}

ffi::String version() { return FOSCAR_VERSION; }

// (name, "cpu" or "cuda", available, description) of every backend, best first within a device.
ffi::Array<ffi::Any> backends() {
  return translated([] {
    ffi::Array<ffi::Any> rows;
    for (const BackendInfo& info : list_backends()) {
      rows.push_back(ffi::Array<ffi::Any>{
          ffi::String(info.name), ffi::String(info.device == DeviceType::kCpu ? "cpu" : "cuda"),
          info.available, ffi::String(info.description)});
    }
    return rows;
  });
}

ffi::String resolved_backend(bool cuda, ffi::String requested) {
  return translated([&]() -> ffi::String {
    return resolve_backend(cuda ? DeviceType::kCuda : DeviceType::kCpu,
                           std::string_view(requested.data(), requested.size()));
  });
}

// Empty if `backend` runs it, else why not.
ffi::String unsupported_reason(ffi::String format, std::int64_t head_dim, std::int64_t page_size,
                               std::int64_t num_qo_heads, std::int64_t num_kv_heads,
                               std::int64_t qo_len, ffi::String q_dtype, ffi::String backend) {
  return translated([&]() -> ffi::String {
    const Support support =
        supported({.format = parse(format),
                   .head_dim = narrow("head_dim", head_dim),
                   .page_size = narrow("page_size", page_size),
                   .num_qo_heads = narrow("num_qo_heads", num_qo_heads),
                   .num_kv_heads = narrow("num_kv_heads", num_kv_heads),
                   .qo_len = narrow("qo_len", qo_len),
                   .q_dtype = query_dtype(std::string_view(q_dtype.data(), q_dtype.size()))},
                  std::string_view(backend.data(), backend.size()));
    return support.ok ? std::string() : support.reason;
  });
}

std::int64_t page_head_bytes(ffi::String format, std::int64_t head_dim, std::int64_t page_size) {
  return translated([&]() -> std::int64_t {
    const KvFormat parsed = parse(format);
    const int dim = narrow("head_dim", head_dim);
    const int size = narrow("page_size", page_size);
    const std::string problem = format_problem(parsed, dim, size);
    if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem);
    return make_page_layout(parsed, dim, size).page_head_bytes;
  });
}

double element_bits(ffi::String format, std::int64_t head_dim, std::int64_t page_size) {
  return translated([&] {
    return bits_per_element(parse(format), narrow("head_dim", head_dim),
                            narrow("page_size", page_size));
  });
}

std::int64_t workspace_bytes(std::int64_t max_batch_size, std::int64_t qo_len,
                             std::int64_t num_qo_heads, std::int64_t num_kv_heads,
                             std::int64_t head_dim, bool cuda, std::int64_t device_index) {
  return translated([&] {
    return decode_workspace_bytes(
        narrow("max_batch_size", max_batch_size), narrow("qo_len", qo_len),
        narrow("num_qo_heads", num_qo_heads), narrow("num_kv_heads", num_kv_heads),
        narrow("head_dim", head_dim),
        {cuda ? DeviceType::kCuda : DeviceType::kCpu, narrow("device", device_index)});
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(version, version);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(backends, backends);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(resolved_backend, resolved_backend);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(unsupported_reason, unsupported_reason);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(page_head_bytes, page_head_bytes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(bits_per_element, element_bits);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_workspace_bytes, workspace_bytes);

}  // namespace foscar::bindings
