// Four C functions over the C++ API, so that the Python benchmark can call libfoscar in its own process by ctypes. All pointers are
// device memory of CUDA device 0 unless said otherwise. A call returns null, or the message of the Error.
#include <cstdint>
#include <string>

#include "foscar/foscar.h"

namespace {

using namespace foscar;

constexpr Device kDevice{DeviceType::kCuda, 0};

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

Tensor tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(data, dtype, shape, kDevice);
}

}  // namespace

extern "C" {

struct FoscarCache {
  const char* format;  // host
  int head_dim;
  int page_size;
  int num_kv_heads;
  std::int64_t num_pages;
  void* pool;         // uint8 [num_pages, num_kv_heads, page_head_bytes]
  void* block_table;  // int32 [batch_size, max_pages]
  void* kv_len;       // int32 [batch_size]
  int batch_size;
  int max_pages;
};

}  // extern "C"

namespace {

PagedKvCache view(const FoscarCache& c) {
  PagedKvCache cache;
  cache.format = KvFormat::parse(c.format);
  cache.head_dim = c.head_dim;
  cache.page_size = c.page_size;
  const int block = make_page_layout(cache.format, c.head_dim, c.page_size).page_head_bytes;
  cache.pool = tensor(c.pool, DType::kU8, {c.num_pages, c.num_kv_heads, block});
  cache.table.block_table = tensor(c.block_table, DType::kI32, {c.batch_size, c.max_pages});
  cache.table.kv_len = tensor(c.kv_len, DType::kI32, {c.batch_size});
  return cache;
}

}  // namespace

extern "C" {

// Bytes of one (page, KV head) block; -1 if there is no such format.
std::int64_t foscar_page_head_bytes(const char* format, int head_dim, int page_size) {
  try {
    const KvFormat parsed = KvFormat::parse(format);
    if (!format_problem(parsed, head_dim, page_size).empty()) return -1;
    return make_page_layout(parsed, head_dim, page_size).page_head_bytes;
  } catch (const std::exception&) {
    return -1;
  }
}

std::int64_t foscar_workspace_bytes(int batch_size, int num_qo_heads, int num_kv_heads,
                                    int head_dim) {
  return decode_workspace_bytes(batch_size, 1, num_qo_heads, num_kv_heads, head_dim, kDevice);
}

// k, v: BF16 [num_tokens, num_kv_heads, head_dim]; slots: int64 [num_tokens].
const char* foscar_append(const FoscarCache* c, void* k, void* v, void* slots,
                          std::int64_t num_tokens, void* stream) {
  return guarded([&] {
    quantize_append(tensor(k, DType::kBF16, {num_tokens, c->num_kv_heads, c->head_dim}),
                    tensor(v, DType::kBF16, {num_tokens, c->num_kv_heads, c->head_dim}),
                    tensor(slots, DType::kI64, {num_tokens}), view(*c), {.stream = stream});
  });
}

// k, v: FP32 [batch_size, max_kv_len, num_kv_heads, head_dim].
const char* foscar_dequantize(const FoscarCache* c, void* k, void* v, std::int64_t max_kv_len,
                              void* stream) {
  return guarded([&] {
    dequantize(view(*c),
               tensor(k, DType::kF32, {c->batch_size, max_kv_len, c->num_kv_heads, c->head_dim}),
               tensor(v, DType::kF32, {c->batch_size, max_kv_len, c->num_kv_heads, c->head_dim}),
               {.stream = stream});
  });
}

// q, o: BF16 [batch_size, num_qo_heads, head_dim]; lse: FP32 [batch_size, num_qo_heads].
const char* foscar_decode(const FoscarCache* c, void* q, void* o, void* lse, int num_qo_heads,
                          void* workspace, std::int64_t workspace_bytes, void* stream) {
  return guarded([&] {
    decode({.q = tensor(q, DType::kBF16, {c->batch_size, num_qo_heads, c->head_dim}),
            .cache = view(*c),
            .o = tensor(o, DType::kBF16, {c->batch_size, num_qo_heads, c->head_dim}),
            .lse = tensor(lse, DType::kF32, {c->batch_size, num_qo_heads})},
           {.workspace = workspace, .workspace_bytes = workspace_bytes, .stream = stream});
  });
}

}  // extern "C"
