// The benchmark's problem and this library's decode as C functions, for benchmarks/cpu_grid.py:
// peers and this library run in one process, over the same values. A call that can fail returns
// null, or the message of the error.
#include <algorithm>
#include <string>
#include <vector>

#include "oracle.h"
#include "problem.h"

namespace {

using namespace foscar;
using namespace foscar::bench;

struct Handle {
  Problem problem;
  // Per cache, then the BF16 cache: what request 0 should be.
  std::vector<std::vector<double>> references;

  const LowBitCache* cache(int index) const {
    return index < 0 ? nullptr : &problem.caches[static_cast<std::size_t>(index)];
  }
};

template <typename Call>
const char* guarded(Call call) {
  static thread_local std::string message;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" {

// `formats`: names, null at the end. The handle lives until foscar_problem_free.
const char* foscar_problem_new(int batch_size, int kv_len, const char* const* formats,
                               Handle** out) {
  return guarded([&] {
    std::vector<std::string> names;
    for (; *formats != nullptr; ++formats) names.emplace_back(*formats);
    *out = new Handle{make_problem({.batch_size = batch_size, .kv_len = kv_len}, names, true), {}};
    (*out)->references.resize(names.size() + 1);
  });
}
void foscar_problem_free(Handle* handle) { delete handle; }

// BF16 [batch_size, num_qo_heads, head_dim].
const void* foscar_problem_query(Handle* handle) { return handle->problem.q.data(); }
// K or V of request b in token order, BF16 [kv_len, num_kv_heads, head_dim], into `out`.
void foscar_problem_rows(Handle* handle, int b, int value, std::uint16_t* out) {
  Problem& p = handle->problem;
  const Shape& s = p.shape;
  const auto* pages =
      reinterpret_cast<const std::uint16_t*>((value != 0 ? p.dense_v : p.dense_k).get());
  for (int t = 0; t < s.kv_len; ++t) {
    const auto entry = static_cast<std::size_t>(b * s.pages_per_request() + t / s.page_size);
    for (int h = 0; h < s.num_kv_heads; ++h) {
      const std::size_t row =
          (static_cast<std::size_t>(p.block_table[entry]) * s.num_kv_heads + h) * s.page_size +
          t % s.page_size;
      out = std::copy_n(pages + row * s.head_dim, s.head_dim, out);
    }
  }
}

// Decode over cache `index`, -1: the BF16 cache, on the backend of that name.
const char* foscar_problem_run(Handle* handle, int index, const char* backend) {
  return guarded([&] {
    Problem& p = handle->problem;
    const ExecutionContext context{.backend = backend};
    if (index < 0) {
      decode_dense(p.params(nullptr), p.dense(), context);
    } else {
      decode(p.params(handle->cache(index)), context);
    }
  });
}

// Relative error of the last run's request 0 against double precision over the same cache.
double foscar_problem_error(Handle* handle, int index) {
  return relative_error(handle->problem, handle->cache(index),
                        handle->references[static_cast<std::size_t>(index + 1)]);
}
// The same for an output of another implementation, FP32 [num_qo_heads, head_dim], against the BF16
// cache.
double foscar_problem_error_of(Handle* handle, const float* o) {
  Problem& p = handle->problem;
  std::copy_n(o, p.shape.num_qo_heads * p.shape.head_dim, p.o.data());
  return relative_error(p, nullptr, handle->references[0]);
}
double foscar_problem_bytes(Handle* handle, int index) {
  return index < 0 ? handle->problem.dense_bytes : handle->cache(index)->bytes;
}

void foscar_sweep_caches() { sweep_caches(); }
double foscar_read_ceiling_gbps(int threads) { return read_ceiling_gbps(threads, true); }
// Whether a CPU backend runs here.
int foscar_backend_available(const char* name) {
  for (const BackendInfo& info : list_backends()) {
    if (info.name == name) return info.available ? 1 : 0;
  }
  return 0;
}

}  // extern "C"
