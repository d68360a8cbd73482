// Decode attention: o = softmax(sm_scale * q K^T) V for the newest tokens of each request, over a paged low-bit cache.
//
// Errors of every function here: Error{kInvalidType, kInvalidArgument, kUnsupported} before anything is written,
// checked in the order device, dtype, layout, shape, range; Error{kRuntime} when the device refuses a launch.
// Host code never synchronizes the device and never allocates device memory; calls are CUDA-graph capturable.
#pragma once

#include <cstdint>
#include <string_view>

#include "foscar/layout/paged_kv.h"
#include "foscar/tensor.h"

namespace foscar {

struct DecodeParams {
  // BF16 or FP16 (CPU also FP32), [batch_size, num_qo_heads, head_dim] or, for several new tokens per request,
  // [batch_size, qo_len, num_qo_heads, head_dim]. Innermost contiguous, other strides free. num_qo_heads is a
  // multiple of num_kv_heads; query head h reads KV head h / (num_qo_heads / num_kv_heads).
  Tensor q{};
  PagedKvCache cache{};
  // Shape of q; dtype of q, or FP32 on the CPU. An empty request's rows are exactly 0.
  Tensor o{};
  // Optional FP32 [batch_size, num_qo_heads] or [batch_size, qo_len, num_qo_heads], contiguous: the natural log of the
  // denominator of o, that is of sum(exp(logit)) over the true logits, offsets and the sink included; -inf for an empty row
  // (its sink, if there is one). Parts of the keys can be merged by it when exactly one of the calls is given the sinks.
  Tensor lse{};
  // Factor on q.k; 0 means 1 / sqrt(head_dim). Must be finite.
  double sm_scale = 0.0;
  // Which keys a row sees. New token i of a request is at position p = kv_len - qo_len + i; keys have positions
  // 0 .. kv_len - 1. causal: row i sees no key behind p. Not consulted where `mask` is given.
  bool causal = true;
  // Row i sees no key before p - window_left: the window_left keys before the current one, and that one. -1: no limit.
  int window_left = -1;
  // Optional uint8 [batch_size, qo_len, qo_len], or [qo_len, qo_len] for all requests alike; contiguous. Row i sees new
  // token j where mask[i][j] is not 0 (a draft tree, say), and every key before the new tokens, within the window.
  Tensor mask{};
  // A logit becomes cap * tanh(logit / cap) before anything else happens to it. 0: off. Finite, not negative.
  double logits_soft_cap = 0.0;
  // Optional FP32 [num_qo_heads], contiguous: attention sinks, one logit per query head that takes part in the denominator and
  // has no value. It is neither scaled nor capped, and every row sees it. -inf is no sink; NaN or +inf make the head's rows NaN.
  Tensor sinks{};
  // Tokens per split, a multiple of page_size and of 64, or 0: the schedule chooses. A fixed size makes a request's bits
  // independent of its neighbours (batch-invariant mode).
  int kv_chunk_size = 0;
};

// Where and how a call runs. The defaults are right for the CPU.
struct ExecutionContext {
  // Scratch on the device of the tensors, at least decode_workspace_bytes(), 256-byte aligned. On a CUDA device its
  // first use must find zeros (cudaMemset once); each call leaves the counters in it as it found them. Calls that may
  // run at the same time, on several streams, need one each. Unused on CPU.
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  // cudaStream_t of the device of the tensors; null is the default stream. Unused on CPU.
  void* stream = nullptr;
  // Backend by name (list_backends()); empty: the best one for the device of the tensors, or the one that the
  // environment variable FOSCAR_FORCE_BACKEND names.
  std::string_view backend;
};

// Decodes. Results are deterministic: the same call gives the same bits.
void decode(const DecodeParams& params, const ExecutionContext& context = {});

// The same over unquantized BF16/FP16 pages: params.cache is ignored, `kv` is read instead.
void decode_dense(const DecodeParams& params, const PagedDenseKv& kv,
                  const ExecutionContext& context = {});

// Bytes of workspace that decode() needs for any lengths of at most `max_batch_size` requests with these heads.
// `device` is the device of the tensors. 0 on the CPU.
std::int64_t decode_workspace_bytes(int max_batch_size, int qo_len, int num_qo_heads,
                                    int num_kv_heads, int head_dim, Device device);

// Merges num_states partial attention results of the same queries over disjoint keys, weighted by their LSE.
//   v    [num_states, num_rows, num_heads, head_dim]   FP32, FP16 or BF16, contiguous
//   lse  [num_states, num_rows, num_heads]             FP32 natural log; -inf marks an empty state
//   o    [num_rows, num_heads, head_dim]               dtype of v; 0 where every state is empty
//   lse_out  optional [num_rows, num_heads]            FP32
// NaN or +inf in lse propagates to that row's output as NaN.
void merge_states(const Tensor& v, const Tensor& lse, const Tensor& o, const Tensor& lse_out,
                  const ExecutionContext& context = {});

}  // namespace foscar
