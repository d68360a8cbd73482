// KvInput: the queries, keys and values that a command works on, from a file or generated. Whatever
// comes out of here is consistent: shapes agree, lengths are in range, every value that counts is
// finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host_tensor.h"

namespace foscar::tool {

struct KvInput {
  HostTensor q;  // [batch_size, num_qo_heads, head_dim]; no elements where only K/V were asked for
  HostTensor k;  // [batch_size, max_kv_len, num_kv_heads, head_dim]
  HostTensor v;  // like k
  std::vector<std::int32_t> kv_len;  // [batch_size], tokens, 0 .. max_kv_len

  std::int64_t batch_size() const { return k.shape[0]; }
  std::int64_t max_kv_len() const { return k.shape[1]; }
  int num_qo_heads() const { return static_cast<int>(q.shape[1]); }
  int num_kv_heads() const { return static_cast<int>(k.shape[2]); }
  int head_dim() const { return static_cast<int>(k.shape[3]); }
  std::int64_t num_tokens() const;  // sum of kv_len
};

enum class QueryUse : bool { kIgnored, kRequired };

// Reads tensors `q`, `k`, `v` (BF16, FP16 or FP32) and, if there, `kv_len` (int32). Throws
// Error{kFile}.
KvInput load_kv_input(const std::string& path, QueryUse query);

// Generated BF16 data, the same for the same shape. `shape` is BATCHxLENxHQ/HKVxD, e.g.
// "1x32768x32/8x128"; throws Error{kInvalidArgument}. Channels have means of their own, as real
// keys do.
KvInput generate_kv_input(const std::string& shape);

// The input with every request's keys and values repeated up to `kv_len` tokens. Repeats are not
// copies: each value is moved by Gaussian noise of a tenth of its tensor's root mean square, so
// attention has as many distinct keys as tokens. Empty requests stay empty. Throws
// Error{kInvalidArgument} when kv_len is shorter than the input.
KvInput extend_kv_input(const KvInput& input, std::int64_t kv_len);

}  // namespace foscar::tool
