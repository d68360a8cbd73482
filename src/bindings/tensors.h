// From what Python passes (DLPack tensors, the caller's stream) to what the C++ API takes, and from foscar::Error to
// Python's exceptions. Shared by the files of this folder, each of which exports some functions.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string_view>

#include "foscar/foscar.h"

namespace foscar::bindings {

namespace ffi = tvm::ffi;
using OptionalTensor = ffi::Optional<ffi::TensorView>;

// The view of a DLPack tensor; `name` is the argument, for messages. TypeError for an element type or a device that no
// argument of the library can have.
Tensor view(const char* name, const ffi::TensorView& t);
// An undefined tensor for None.
Tensor view(const char* name, const OptionalTensor& t);

// What Python passes of a page table; None for what is not given.
PageTable table(const OptionalTensor& block_table, const OptionalTensor& kv_len,
                const OptionalTensor& kv_indptr, const OptionalTensor& kv_indices,
                const OptionalTensor& kv_last_page_len);

PagedKvCache cache(const ffi::TensorView& pool, const ffi::String& format, std::int64_t head_dim,
                   std::int64_t page_size, const PageTable& table);

// The stream that is current on the device of `t` in the framework that `t` comes from.
ExecutionContext context(const Tensor& t, std::string_view backend);

// Puts the uint8 tensor `workspace`, when it is given, into `where`; it must lie on `device`.
void use_workspace(ExecutionContext& where, const Tensor& workspace, Device device);

// An int argument that the C++ API takes as int.
int narrow(const char* name, std::int64_t value);

[[noreturn]] void rethrow(const Error& error);

// Runs `call`; a foscar::Error leaves as ValueError, TypeError, NotImplementedError or RuntimeError.
template <typename Call>
auto translated(Call call) {
  try {
    return call();
  } catch (const Error& error) {
    rethrow(error);
  }
}

}  // namespace foscar::bindings
