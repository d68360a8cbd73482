// Bad arguments of decode, third part: formats, shapes, ranges, contents of page tables. One row
// per mistake.
#include <gtest/gtest.h>

#include "spoiled_call.h"

namespace foscar::test {
namespace {

TEST(DecodeErrors, FormatsAndShapes) {
  expect_decode_errors({
      // format and shapes
      {"H30 3 bits",
       [](Call& c) { c.params.cache.format.k.bits = 3; },
       kValue,
       {"k_bits:", "3", "2, 4"}},
      {"H43 head_dim 72",
       [](Call& c) { c.params.cache.head_dim = 72; },
       kValue,
       {"head_dim:", "72", "64, 128, 256"}},
      {"H09 page_size 24",
       [](Call& c) { c.params.cache.page_size = 24; },
       kValue,
       {"page_size:", "24", "powers of two"}},
      {"H41 group 128 at head_dim 64",
       [](Call& c) { c.params.cache.head_dim = 64; },
       kValue,
       {"quant_group_size:", "128", "64"}},
      {"channel-wise",
       [](Call& c) { c.params.cache.format.k.axis = QuantAxis::kChannel; },
       kValue,
       {"k_axis:", "channel", "token"}},
      {"parameters int",
       [](Call& c) { c.params.cache.format.param_dtype = DType::kI32; },
       kValue,
       {"param_dtype:", "int32", "float32"}},
      {"H35 pool one byte short",
       [](Call& c) { c.params.cache.pool.shape[2] -= 1; },
       kValue,
       {"pool:", "1279 bytes", "1280"}},
      {"H48 pool of another format",
       [](Call& c) { c.params.cache.format = KvFormat::parse("k4v4-token-g128-f32"); },
       kValue,
       {"pool:", "1280 bytes", "2304", "k4v4-token-g128-f32"}},
      {"q head_dim",
       [](Call& c) { c.params.q.shape[2] = 64; },
       kValue,
       {"q:", "64", "128 (head_dim of the cache)"}},
      {"H38 8 heads over 3",
       [](Call& c) { c.params.cache.pool.shape[1] = 3; },
       kValue,
       {"q:", "num_qo_heads 8 with num_kv_heads 3", "multiple of num_kv_heads"}},
      {"H38 fewer query heads",
       [](Call& c) { c.params.q.shape[1] = 1; },
       kValue,
       {"q:", "num_qo_heads 1 with num_kv_heads 2", "multiple"}},
      {"H38 no query heads",
       [](Call& c) { c.params.q.shape[1] = 0; },
       kValue,
       {"q:", "num_qo_heads 0 with num_kv_heads 2", "positive"}},
      {"H38 no KV heads",
       [](Call& c) { c.params.cache.pool.shape[1] = 0; },
       kValue,
       {"q:", "num_qo_heads 8 with num_kv_heads 0", "positive"}},
      {"qo_len 0",
       [](Call& c) {
         c.params.q = Tensor::contiguous(c.q.data(), DType::kF32, {2, 0, 8, 128});
         c.params.o = c.params.q;
         c.params.lse = {};
       },
       kValue,
       {"q:", "qo_len 0", "at least 1"}},
      {"o shape",
       [](Call& c) { c.params.o.shape[0] = 1; },
       kValue,
       {"o:", "[1, 8, 128]", "[2, 8, 128]"}},
      {"lse shape",
       [](Call& c) {
         c.params.lse.shape[1] = 4;
         c.params.lse.strides[0] = 4;
       },
       kValue,
       {"lse:", "[2, 4]", "[2, 8]"}},
      {"batch over 2^31",
       [](Call& c) {
         for (Tensor* t : {&c.params.q, &c.params.o}) t->shape[0] = std::int64_t{1} << 31;
         c.params.lse = {};
       },
       kValue,
       {"q:", "batch_size 2147483648", "at most 2147483647"}},
      {"H51 table rows",
       [](Call& c) { c.table().block_table.shape[0] = 3; },
       kValue,
       {"block_table:", "3", "2 (batch_size)"}},
      {"H51 lengths",
       [](Call& c) { c.table().kv_len.shape[0] = 1; },
       kValue,
       {"kv_len:", "1", "2 (batch_size)"}},
      {"H51 indptr",
       [](Call& c) {
         c.use_csr();
         c.table().kv_indptr.shape[0] = 2;
       },
       kValue,
       {"kv_indptr:", "2", "3 (batch_size + 1)"}},
      {"H51 last page",
       [](Call& c) {
         c.use_csr();
         c.table().kv_last_page_len.shape[0] = 1;
       },
       kValue,
       {"kv_last_page_len:", "1", "2 (batch_size)"}},
  });
}

TEST(DecodeErrors, RangesAndTables) {
  expect_decode_errors({
      // ranges
      {"scale NaN",
       [](Call& c) { c.params.sm_scale = std::nan(""); },
       kValue,
       {"sm_scale:", "nan", "finite"}},
      {"scale infinite",
       [](Call& c) { c.params.sm_scale = std::numeric_limits<double>::infinity(); },
       kValue,
       {"sm_scale:", "inf", "finite"}},
      {"scale beyond FP32",
       [](Call& c) { c.params.sm_scale = 1e300; },
       kValue,
       {"sm_scale:", "10000", "finite float32"}},
      {"chunk of 32",
       [](Call& c) { c.params.kv_chunk_size = 32; },
       kValue,
       {"kv_chunk_size:", "32", "multiple of 64"}},
      {"chunk negative",
       [](Call& c) { c.params.kv_chunk_size = -64; },
       kValue,
       {"kv_chunk_size:", "-64", "0 or a multiple"}},
      {"chunk below the page",
       [](Call& c) {
         c.params.kv_chunk_size = 64;
         c.params.cache.page_size = 128;
         c.params.cache.pool.shape[1] = 1;
         c.params.cache.pool.shape[0] = 1;
         c.params.cache.pool.shape[2] = 10240;
       },
       kValue,
       {"kv_chunk_size:", "64", "multiple of 128"}},
      {"length negative", [](Call& c) { c.lens[1] = -1; }, kValue, {"kv_len[1]:", "-1", "0 .. 32"}},
      {"length beyond the table",
       [](Call& c) { c.lens[0] = 33; },
       kValue,
       {"kv_len[0]:", "33", "0 .. 32 (max_pages * page_size)"}},
      {"page negative",
       [](Call& c) { c.block[1] = -1; },
       kValue,
       {"block_table[0]:", "page -1 at entry 1", "0 .. 5"}},
      {"page beyond the pool",
       [](Call& c) { c.block[2] = 6; },
       kValue,
       {"block_table[1]:", "page 6 at entry 0", "0 .. 5"}},
      {"CSR page beyond the pool",
       [](Call& c) {
         c.use_csr();
         c.indices[2] = 1 << 30;
       },
       kValue,
       {"kv_indices of request 1:", "1073741824", "0 .. 5"}},
      {"indptr starts late",
       [](Call& c) {
         c.use_csr();
         c.indptr[0] = 1;
       },
       kValue,
       {"kv_indptr[0]:", "1", "0"}},
      {"indptr falls",
       [](Call& c) {
         c.use_csr();
         c.indptr[2] = 1;
       },
       kValue,
       {"kv_indptr[2]:", "1", "2 .. 3"}},
      {"indptr negative",
       [](Call& c) {
         c.use_csr();
         c.indptr[1] = -5;
       },
       kValue,
       {"kv_indptr[1]:", "-5", "0 .. 3"}},
      {"indptr beyond the indices",
       [](Call& c) {
         c.use_csr();
         c.indptr[2] = 4;
       },
       kValue,
       {"kv_indptr[2]:", "4", "2 .. 3"}},
      {"last page empty",
       [](Call& c) {
         c.use_csr();
         c.last[0] = 0;
       },
       kValue,
       {"kv_last_page_len[0]:", "0", "1 .. 16"}},
      {"last page too full",
       [](Call& c) {
         c.use_csr();
         c.last[1] = 17;
       },
       kValue,
       {"kv_last_page_len[1]:", "17", "1 .. 16"}},
  });
}

TEST(DecodeErrors, Modifiers) {
  static float sinks[16];
  static std::uint8_t mask[16];
  const auto cpu = [](void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(data, dtype, shape);
  };
  expect_decode_errors({
      {"window -2",
       [](Call& c) { c.params.window_left = -2; },
       kValue,
       {"window_left:", "-2", "-1 (no limit)"}},
      {"cap negative",
       [](Call& c) { c.params.logits_soft_cap = -1; },
       kValue,
       {"logits_soft_cap:", "-1", "positive finite"}},
      {"cap NaN",
       [](Call& c) { c.params.logits_soft_cap = std::nan(""); },
       kValue,
       {"logits_soft_cap:", "nan", "positive finite"}},
      {"cap beyond FP32",
       [](Call& c) { c.params.logits_soft_cap = 1e300; },
       kValue,
       {"logits_soft_cap:", "10000", "positive finite"}},
      {"cap below FP32",
       [](Call& c) { c.params.logits_soft_cap = 1e-300; },
       kValue,
       {"logits_soft_cap:", "positive finite"}},
      {"sinks of another device",
       [&](Call& c) { c.params.sinks = Tensor::contiguous(sinks, DType::kF32, {8}, kCuda0); },
       kType,
       {"sinks:", "CUDA:0", "CPU"}},
      {"sinks BF16",
       [&](Call& c) { c.params.sinks = cpu(sinks, DType::kBF16, {8}); },
       kType,
       {"sinks:", "bfloat16", "float32"}},
      {"sinks per KV head",
       [&](Call& c) { c.params.sinks = cpu(sinks, DType::kF32, {2}); },
       kValue,
       {"sinks:", "[2]", "[8]"}},
      {"sinks per request",
       [&](Call& c) {
         c.params.sinks = cpu(sinks, DType::kF32, {2, 8});
       },
       kValue,
       {"sinks:", "[num_qo_heads]"}},
      {"mask int32",
       [&](Call& c) {
         c.params.mask = cpu(mask, DType::kI32, {1, 1});
       },
       kType,
       {"mask:", "int32", "uint8"}},
      {"mask of another device",
       [&](Call& c) {
         c.params.mask = Tensor::contiguous(mask, DType::kU8, {1, 1}, kCuda0);
       },
       kType,
       {"mask:", "CUDA:0", "CPU"}},
      {"mask over all keys",
       [&](Call& c) {
         c.params.mask = cpu(mask, DType::kU8, {1, 10});
       },
       kValue,
       {"mask:", "[1, 10]", "[1, 1]"}},
      {"mask of another batch",
       [&](Call& c) {
         c.params.mask = cpu(mask, DType::kU8, {3, 1, 1});
       },
       kValue,
       {"mask:", "[3, 1, 1]", "[2, 1, 1]"}},
      {"mask of one dimension",
       [&](Call& c) { c.params.mask = cpu(mask, DType::kU8, {1}); },
       kValue,
       {"mask:", "[qo_len, qo_len]"}},
  });
}

// Page ids that no request reads may be anything, and lse is optional.
TEST(DecodeErrors, NotMistakes) {
  Call call;
  call.block[3] = 1 << 30;
  call.params.lse = {};
  decode(call.params);
  Call csr;
  csr.use_csr();
  csr.indptr = {0, 0, 3};
  csr.last = {-1, 16};  // of a request without pages: never looked at
  decode(csr.params);
  for (int i = 0; i < 8 * 128; ++i) ASSERT_EQ(csr.o[static_cast<std::size_t>(i)], 0.0f);
}

}  // namespace
}  // namespace foscar::test
