#include "decode_job.h"

#include <cmath>

#include "foscar/append.h"
#include "foscar/backends.h"
#include "foscar/error.h"

namespace foscar::tool {
namespace {

constexpr std::uint8_t kPoison = 0xff;

}  // namespace

DecodeJob::DecodeJob(const KvInput& input, const JobSetup& setup)
    : input_(input), setup_(setup), arena_(make_arena(setup.device)) {
  const bool on_cpu = setup.device == DeviceType::kCpu;
  // Devices take 16-bit queries only; the CPU's FP32 output shows the kernel's error without an
  // output rounding.
  q_ = on_cpu || input.q.dtype != DType::kF32 ? input.q : input.q.to(DType::kBF16);
  const Support support = supported({.format = setup.format,
                                     .head_dim = input.head_dim(),
                                     .page_size = setup.page_size,
                                     .num_qo_heads = input.num_qo_heads(),
                                     .num_kv_heads = input.num_kv_heads(),
                                     .qo_len = 1,
                                     .q_dtype = q_.dtype},
                                    setup.backend);
  if (!support.ok) throw Error(ErrorKind::kUnsupported, setup.backend + ": " + support.reason);

  plan_ = plan_pages(input, setup.page_size, PageOrder::kShuffled);
  dense_ = make_dense_cache(*arena_, input, plan_);
  const DType o_dtype = on_cpu ? DType::kF32 : q_.dtype;
  const std::vector<std::int64_t> lse_shape{input.batch_size(), input.num_qo_heads()};
  params_.q = arena_->upload(q_);
  params_.cache = make_quantized_cache(*arena_, input, plan_, setup.format, setup.backend, kPoison);
  params_.o = arena_->allocate(o_dtype, input.q.shape, kPoison);
  params_.lse = arena_->allocate(DType::kF32, lse_shape, kPoison);
  dense_params_ = params_;
  dense_params_.o = arena_->allocate(o_dtype, input.q.shape, kPoison);
  dense_params_.lse = arena_->allocate(DType::kF32, lse_shape, kPoison);

  context_.backend = setup_.backend;
  context_.workspace_bytes =
      decode_workspace_bytes(static_cast<int>(input.batch_size()), 1, input.num_qo_heads(),
                             input.num_kv_heads(), input.head_dim(), arena_->device());
  if (context_.workspace_bytes > 0) {
    context_.workspace = arena_->allocate(DType::kU8, {context_.workspace_bytes}, 0).data;
  }
}

void DecodeJob::decode() { foscar::decode(params_, context_); }
void DecodeJob::decode_bf16() { foscar::decode_dense(dense_params_, dense_, context_); }

bool DecodeJob::try_decode_bf16() {
  try {
    decode_bf16();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return false;
  }
}

DecodeOutput DecodeJob::output() {
  return {arena_->download(params_.o), arena_->download(params_.lse)};
}
DecodeOutput DecodeJob::output_bf16() {
  return {arena_->download(dense_params_.o), arena_->download(dense_params_.lse)};
}

HostTensor DecodeJob::pool() { return arena_->download(params_.cache.pool); }

KvRows DecodeJob::read_back(DeviceArena& arena, const PagedKvCache& cache,
                            const std::string& backend) const {
  const Tensor k = arena.allocate(DType::kF32, input_.k.shape, 0);
  const Tensor v = arena.allocate(DType::kF32, input_.v.shape, 0);
  dequantize(cache, k, v, {.backend = backend});
  return {arena.download(k), arena.download(v)};
}

KvRows DecodeJob::dequantized() { return read_back(*arena_, params_.cache, setup_.backend); }

KvRows DecodeJob::dequantized_by_reference() {
  const std::unique_ptr<DeviceArena> host = make_arena(DeviceType::kCpu);
  PagedKvCache copy = params_.cache;
  copy.pool = host->upload(pool());
  copy.table.block_table = host->upload(arena_->download(params_.cache.table.block_table));
  copy.table.kv_len = host->upload(arena_->download(params_.cache.table.kv_len));
  return read_back(*host, copy, "reference");
}

KvRows DecodeJob::rows_bf16() const {
  return {input_.k.to(DType::kBF16), input_.v.to(DType::kBF16)};
}

OracleOutput DecodeJob::oracle(const KvRows& rows) const {
  const std::vector<float> q = q_.to_float();
  const std::vector<float> k = rows.k.to_float();
  const std::vector<float> v = rows.v.to_float();
  return attend({.batch_size = input_.batch_size(),
                 .max_kv_len = input_.max_kv_len(),
                 .num_qo_heads = input_.num_qo_heads(),
                 .num_kv_heads = input_.num_kv_heads(),
                 .head_dim = input_.head_dim(),
                 .q = q,
                 .k = k,
                 .v = v,
                 .kv_len = input_.kv_len,
                 .sm_scale = 1.0 / std::sqrt(input_.head_dim())});
}

std::int64_t DecodeJob::bytes_of_tokens(std::int64_t pool_bytes) const {
  const std::int64_t slots = plan_.num_pages * plan_.page_size;
  return (pool_bytes * input_.num_tokens() + slots - 1) / slots;
}
std::int64_t DecodeJob::kv_bytes() const { return bytes_of_tokens(params_.cache.pool.numel()); }
std::int64_t DecodeJob::kv_bytes_bf16() const {
  return bytes_of_tokens((dense_.k.numel() + dense_.v.numel()) * dtype_bytes(dense_.k.dtype));
}

}  // namespace foscar::tool
