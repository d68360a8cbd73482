// DecodeJob: one input, quantized into pages and laid out as BF16 pages beside it, ready to be
// decoded any number of times on one backend. `foscar run` measures it, `foscar selftest` checks
// it.
#pragma once

#include <memory>
#include <string>

#include "attention_oracle.h"
#include "device_arena.h"
#include "foscar/decode.h"
#include "kv_input.h"
#include "paged_input.h"

namespace foscar::tool {

struct JobSetup {
  KvFormat format;
  int page_size = 64;   // tokens
  std::string backend;  // as resolve_backend() names it
  DeviceType device = DeviceType::kCpu;
};

// Keys and values as the caches hold them, [batch_size, max_kv_len, num_kv_heads, head_dim]; zeros
// beyond kv_len.
struct KvRows {
  HostTensor k;
  HostTensor v;
};

struct DecodeOutput {
  HostTensor
      o;  // [batch_size, num_qo_heads, head_dim]: FP32 on the CPU, else the type of the query
  HostTensor lse;  // FP32 [batch_size, num_qo_heads]
};

class DecodeJob {
 public:
  // Page ids are shuffled; unused slots hold NaN and unused table entries no valid page, so a read
  // beyond kv_len shows. Throws Error{kUnsupported} when the backend cannot run the problem.
  // `input` must outlive the job.
  DecodeJob(const KvInput& input, const JobSetup& setup);

  void decode();
  void decode_bf16();
  // The same, or false where the backend decodes low-bit pages only.
  bool try_decode_bf16();
  DeviceArena& arena() { return *arena_; }

  // Results of the last call.
  DecodeOutput output();
  DecodeOutput output_bf16();

  // uint8 [num_pages, num_kv_heads, page_head_bytes]
  HostTensor pool();
  // The low-bit cache read back by the backend itself, and by the reference from a copy of the
  // pool.
  KvRows dequantized();
  KvRows dequantized_by_reference();
  // The input rounded as the BF16 cache holds it.
  KvRows rows_bf16() const;

  // Double-precision attention of the queries over `rows`.
  OracleOutput oracle(const KvRows& rows) const;

  // Bytes of the stored tokens' keys and values: pool bytes per slot times tokens. Padding inside a
  // page counts, the unfilled end of a request's last page does not.
  std::int64_t kv_bytes() const;
  std::int64_t kv_bytes_bf16() const;

 private:
  std::int64_t bytes_of_tokens(std::int64_t pool_bytes) const;
  KvRows read_back(DeviceArena& arena, const PagedKvCache& cache, const std::string& backend) const;

  const KvInput& input_;
  JobSetup setup_;
  std::unique_ptr<DeviceArena> arena_;
  HostTensor q_;  // [batch_size, num_qo_heads, head_dim], as the backend takes it
  PagePlan plan_;
  PagedDenseKv dense_;
  DecodeParams params_;
  DecodeParams dense_params_;
  ExecutionContext context_;
};

}  // namespace foscar::tool
