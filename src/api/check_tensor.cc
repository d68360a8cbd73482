// See check_tensor.h.
#include "api/check_tensor.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace foscar {
namespace {

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

template <typename Range>
std::string list_text(const Range& values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[at(i)]);
  }
  return text + "]";
}

std::string stride_text(const Tensor& t) {
  return "strides " + list_text(t.strides, t.ndim) + " for shape " + shape_text(t);
}

}  // namespace

void reject(ErrorKind kind, std::string_view name, const std::string& got,
            const std::string& allowed) {
  throw Error(kind, std::string(name) + ": got " + got + ", allowed " + allowed);
}

std::string device_text(Device device) {
  return device.type == DeviceType::kCpu ? "CPU" : "CUDA:" + std::to_string(device.index);
}

std::string shape_text(const Tensor& t) { return list_text(t.shape, t.ndim); }

void require_given(std::string_view name, const Tensor& t) {
  if (!t.defined()) reject(ErrorKind::kInvalidArgument, name, "nothing", "a tensor");
  if (t.ndim < 0 || t.ndim > Tensor::kMaxDims) {
    reject(ErrorKind::kInvalidArgument, name, std::to_string(t.ndim) + " dimensions",
           "0 to " + std::to_string(Tensor::kMaxDims));
  }
  std::int64_t elements = 1;
  bool fits = true;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[at(i)] < 0) {
      reject(ErrorKind::kInvalidArgument, name, "shape " + shape_text(t), "no negative extent");
    }
    fits = fits && !__builtin_mul_overflow(elements, t.shape[at(i)], &elements);
  }
  if (!fits) {
    reject(ErrorKind::kInvalidArgument, name, "shape " + shape_text(t),
           "fewer than 2^63 elements in all");
  }
}

void require_device(std::string_view name, const Tensor& t, Device device,
                    std::string_view reference) {
  if (t.device == device) return;
  reject(ErrorKind::kInvalidType, name, "a tensor on " + device_text(t.device),
         device_text(device) + ", the device of " + std::string(reference));
}

void require_dtype(std::string_view name, const Tensor& t, std::initializer_list<DType> allowed,
                   std::string_view remark) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end()) return;
  std::string names;
  for (DType dtype : allowed)
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  reject(ErrorKind::kInvalidType, name, std::string(dtype_name(t.dtype)),
         names + std::string(remark));
}

void require_rank(std::string_view name, const Tensor& t, std::initializer_list<int> allowed,
                  std::string_view shape) {
  if (std::find(allowed.begin(), allowed.end(), t.ndim) != allowed.end()) return;
  reject(ErrorKind::kInvalidArgument, name, "shape " + shape_text(t), std::string(shape));
}

void require_aligned(std::string_view name, const Tensor& t, int bytes) {
  if (t.data == nullptr) {
    if (t.numel() == 0) return;
    reject(ErrorKind::kInvalidArgument, name, "a null pointer for shape " + shape_text(t),
           "the address of its elements");
  }
  const int needed = std::max(bytes, dtype_bytes(t.dtype));
  const auto rest = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<unsigned>(needed);
  if (rest == 0) return;
  reject(
      ErrorKind::kInvalidArgument, name,
      "an address " + std::to_string(rest) + " bytes past a multiple of " + std::to_string(needed),
      "an alignment of " + std::to_string(needed) + " bytes");
}

void require_inner_contiguous(std::string_view name, const Tensor& t) {
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[at(i)] <= 1) continue;
    const bool innermost = i == t.ndim - 1;
    if (innermost ? t.strides[at(i)] != 1 : t.strides[at(i)] < 0) {
      reject(ErrorKind::kInvalidArgument, name, stride_text(t),
             "stride 1 in the last dimension and no negative stride");
    }
  }
}

void require_contiguous(std::string_view name, const Tensor& t) {
  if (t.numel() == 0) return;
  std::int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[at(i)] > 1 && t.strides[at(i)] != expected) {
      reject(ErrorKind::kInvalidArgument, name, stride_text(t), "a contiguous tensor");
    }
    expected *= t.shape[at(i)];
  }
}

void require_stride_multiple(std::string_view name, const Tensor& t, int dim, int bytes) {
  if (used_stride(t, dim) * dtype_bytes(t.dtype) % bytes == 0) return;
  reject(ErrorKind::kInvalidArgument, name, stride_text(t),
         "a stride that is a multiple of " + std::to_string(bytes) + " bytes in dimension " +
             std::to_string(dim));
}

void require_no_overlap(std::string_view name, const Tensor& t) {
  if (t.numel() == 0) return;
  struct Dim {
    std::int64_t stride, extent;
  };
  std::vector<Dim> dims;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[at(i)] > 1) dims.push_back({t.strides[at(i)], t.shape[at(i)]});
  }
  std::sort(dims.begin(), dims.end(), [](Dim a, Dim b) { return a.stride < b.stride; });
  // From the inside out: each stride must step over everything that the smaller ones reach.
  std::int64_t reach = 1;
  for (const Dim& dim : dims) {
    if (dim.stride < reach) {
      reject(ErrorKind::kInvalidArgument, name, stride_text(t),
             "strides that give every element its own place");
    }
    reach += dim.stride * (dim.extent - 1);
  }
}

void require_extent(std::string_view name, const Tensor& t, int dim, std::int64_t expected,
                    std::string_view meaning) {
  if (t.shape[at(dim)] == expected) return;
  reject(ErrorKind::kInvalidArgument, name,
         std::to_string(t.shape[at(dim)]) + " in dimension " + std::to_string(dim) + " of shape " +
             shape_text(t),
         std::to_string(expected) + " (" + std::string(meaning) + ")");
}

void require_shape(std::string_view name, const Tensor& t,
                   std::initializer_list<std::int64_t> expected, std::string_view meaning) {
  if (std::equal(expected.begin(), expected.end(), t.shape.begin(), t.shape.begin() + t.ndim))
    return;
  reject(ErrorKind::kInvalidArgument, name, "shape " + shape_text(t),
         list_text(std::vector<std::int64_t>(expected), static_cast<int>(expected.size())) + " (" +
             std::string(meaning) + ")");
}

int require_int(std::string_view name, const Tensor& t, int dim, std::string_view what) {
  const std::int64_t value = t.shape[at(dim)];
  if (value > std::numeric_limits<int>::max()) {
    reject(ErrorKind::kInvalidArgument, name, std::string(what) + " " + std::to_string(value),
           "at most " + std::to_string(std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

std::int64_t used_stride(const Tensor& t, int dim) {
  return t.shape[at(dim)] > 1 ? t.strides[at(dim)] : 0;
}

}  // namespace foscar
