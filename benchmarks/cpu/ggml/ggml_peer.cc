// llama.cpp's flash attention over one of its KV cache types, as C functions for
// benchmarks/cpu_peers/ggml_flash.py.
#include <cstdint>
#include <cstring>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace {

struct Peer {
  ggml_context* context;
  ggml_tensor *q, *k, *v, *out;
  ggml_cgraph* graph;
  std::vector<std::uint8_t> work;
};

}  // namespace

extern "C" {

// type: "f16", "q8_0" or "q4_0". Null if there is no such type.
Peer* ggml_peer_new(const char* type_name, int batch_size, int kv_len, int num_qo_heads,
                    int num_kv_heads, int head_dim) {
  ggml_type type;
  if (std::strcmp(type_name, "f16") == 0) {
    type = GGML_TYPE_F16;
  } else if (std::strcmp(type_name, "q8_0") == 0) {
    type = GGML_TYPE_Q8_0;
  } else if (std::strcmp(type_name, "q4_0") == 0) {
    type = GGML_TYPE_Q4_0;
  } else {
    return nullptr;
  }
  ggml_cpu_init();
  const std::size_t side = ggml_row_size(type, head_dim) * static_cast<std::size_t>(kv_len) *
                           static_cast<std::size_t>(num_kv_heads) *
                           static_cast<std::size_t>(batch_size);
  const std::size_t small = std::size_t{64} << 20;
  Peer* p = new Peer{};
  p->context = ggml_init({2 * side + small, nullptr, false});
  p->q = ggml_new_tensor_4d(p->context, GGML_TYPE_F32, head_dim, 1, num_qo_heads, batch_size);
  p->k = ggml_new_tensor_4d(p->context, type, head_dim, kv_len, num_kv_heads, batch_size);
  p->v = ggml_new_tensor_4d(p->context, type, head_dim, kv_len, num_kv_heads, batch_size);
  p->out = ggml_flash_attn_ext(p->context, p->q, p->k, p->v, nullptr,
                               1.0f / __builtin_sqrtf(static_cast<float>(head_dim)), 0.0f, 0.0f);
  p->graph = ggml_new_graph(p->context);
  ggml_build_forward_expand(p->graph, p->out);
  return p;
}

void ggml_peer_free(Peer* p) {
  ggml_free(p->context);
  delete p;
}

// q: FP32 [batch_size, num_qo_heads, head_dim].
void ggml_peer_set_query(Peer* p, const float* q) { std::memcpy(p->q->data, q, ggml_nbytes(p->q)); }

// Rows of request b, FP32 [num_kv_heads, kv_len, head_dim].
void ggml_peer_set_rows(Peer* p, int b, int value, const float* rows) {
  ggml_tensor* t = value != 0 ? p->v : p->k;
  auto* data = static_cast<std::uint8_t*>(t->data) + static_cast<std::size_t>(b) * t->nb[3];
  ggml_quantize_chunk(t->type, rows, data, 0, t->ne[1] * t->ne[2], t->ne[0], nullptr);
}

// 0 is success.
int ggml_peer_run(Peer* p, int threads) {
  ggml_cplan plan = ggml_graph_plan(p->graph, threads, nullptr);
  if (p->work.size() < plan.work_size) p->work.resize(plan.work_size);
  plan.work_data = p->work.data();
  return ggml_graph_compute(p->graph, &plan);
}

// FP32 [batch_size, num_qo_heads, head_dim].
const float* ggml_peer_output(Peer* p) { return static_cast<const float*>(p->out->data); }
double ggml_peer_bytes(Peer* p) {
  return static_cast<double>(ggml_nbytes(p->k) + ggml_nbytes(p->v));
}

}  // extern "C"
