// Checks of one tensor, the words that every message is made of. A message reads
//
//     <argument>: got <what was given>, allowed <what would be accepted>
//
// Called by check.cc and check_table.cc, which decide what is required and in which order.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "foscar/error.h"
#include "foscar/tensor.h"

namespace foscar {

[[noreturn]] void reject(ErrorKind kind, std::string_view name, const std::string& got,
                         const std::string& allowed);

// "CPU" or "CUDA:1".
std::string device_text(Device device);
// "[2, 8, 128]".
std::string shape_text(const Tensor& t);

// Given at all, with a rank that the view can hold, no negative extent, and elements that an int64
// can count.
void require_given(std::string_view name, const Tensor& t);
// On `device`, which is that of `reference`.
void require_device(std::string_view name, const Tensor& t, Device device,
                    std::string_view reference);
void require_dtype(std::string_view name, const Tensor& t, std::initializer_list<DType> allowed,
                   std::string_view remark = {});

// `shape` is how the documentation writes the shape, for the message.
void require_rank(std::string_view name, const Tensor& t, std::initializer_list<int> allowed,
                  std::string_view shape);
// Non-null when it has elements, and a multiple of `bytes` (at least of the element size).
void require_aligned(std::string_view name, const Tensor& t, int bytes);
// Innermost dimension contiguous, no negative strides. Dimensions of extent 1 may carry any stride.
void require_inner_contiguous(std::string_view name, const Tensor& t);
void require_contiguous(std::string_view name, const Tensor& t);
// The stride of dimension `dim` is a multiple of `bytes`.
void require_stride_multiple(std::string_view name, const Tensor& t, int dim, int bytes);
// No two indices may name the same element: the tensor is written.
void require_no_overlap(std::string_view name, const Tensor& t);

// `meaning` says what the extent counts: "head_dim of the cache".
void require_extent(std::string_view name, const Tensor& t, int dim, std::int64_t expected,
                    std::string_view meaning);
void require_shape(std::string_view name, const Tensor& t,
                   std::initializer_list<std::int64_t> expected, std::string_view meaning);
// Extent `dim` as an int; `what` names the quantity.
int require_int(std::string_view name, const Tensor& t, int dim, std::string_view what);

// Elements between neighbours of `dim`; 0 where there is only one, whatever stride the tensor
// carries there.
std::int64_t used_stride(const Tensor& t, int dim);

}  // namespace foscar
