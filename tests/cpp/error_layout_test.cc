// Bad arguments of decode, second part: ranks, strides, alignment. One row per mistake.
#include <gtest/gtest.h>

#include <cstdint>

#include "spoiled_call.h"

namespace foscar::test {
namespace {

TEST(DecodeErrors, Layouts) {
  expect_decode_errors({
      // layout
      {"q rank",
       [](Call& c) { c.params.q.ndim = 2; },
       kValue,
       {"q:", "[2, 8]", "[batch_size, num_qo_heads, head_dim]"}},
      {"o rank", [](Call& c) { c.params.o.ndim = 2; }, kValue, {"o:", "[2, 8]", "[2, 8, 128]"}},
      {"lse rank",
       [](Call& c) { c.params.lse.ndim = 1; },
       kValue,
       {"lse:", "[2]", "shape of q without head_dim"}},
      {"pool rank",
       [](Call& c) { c.params.cache.pool.ndim = 2; },
       kValue,
       {"pool:", "[", "[num_pages, num_kv_heads, page_head_bytes]"}},
      {"q of more elements than can be counted",
       [](Call& c) {
         c.params.q.shape = {INT64_MAX, 2, 128};
       },
       kValue,
       {"q:", "9223372036854775807", "fewer than 2^63"}},
      {"H44 q not contiguous inside",
       [](Call& c) {
         c.params.q.strides = {1, 256, 2};
       },
       kValue,
       {"q:", "[1, 256, 2]", "stride 1"}},
      {"q backwards",
       [](Call& c) { c.params.q.strides[0] = -1024; },
       kValue,
       {"q:", "-1024", "no negative stride"}},
      {"o not contiguous inside",
       [](Call& c) { c.params.o.strides[2] = 2; },
       kValue,
       {"o:", "2]", "stride 1"}},
      {"o heads overlap",
       [](Call& c) { c.params.o.strides[1] = 64; },
       kValue,
       {"o:", "64", "its own place"}},
      {"o requests overlap",
       [](Call& c) { c.params.o.strides[0] = 0; },
       kValue,
       {"o:", "[0, 128, 1]", "its own place"}},
      {"lse with gaps",
       [](Call& c) { c.params.lse.strides[0] = 9; },
       kValue,
       {"lse:", "[9, 1]", "contiguous"}},
      {"H46 q between elements",
       [](Call& c) { c.params.q.data = reinterpret_cast<std::uint8_t*>(c.q_padded.data()) + 2; },
       kValue,
       {"q:", "2 bytes past a multiple of 4", "alignment of 4"}},
      {"H46 o between elements",
       [](Call& c) { c.params.o.data = reinterpret_cast<std::uint8_t*>(c.o.data()) + 1; },
       kValue,
       {"o:", "1 bytes past", "alignment of 4"}},
      {"H46 pool off by 8",
       [](Call& c) { c.params.cache.pool.data = c.host.pool.data() + 8; },
       kValue,
       {"pool:", "8 bytes past a multiple of 16", "alignment of 16"}},
      {"pool page stride",
       [](Call& c) { c.params.cache.pool.strides[0] += 8; },
       kValue,
       {"pool:", "strides", "multiple of 16 bytes in dimension 0"}},
      {"pool head stride",
       [](Call& c) { c.params.cache.pool.strides[1] += 4; },
       kValue,
       {"pool:", "strides", "multiple of 16 bytes in dimension 1"}},
      {"pool bytes apart",
       [](Call& c) { c.params.cache.pool.strides[2] = 2; },
       kValue,
       {"pool:", "2]", "stride 1"}},
      {"q null",
       [](Call& c) { c.params.q.data = nullptr; },
       kValue,
       {"q:", "null pointer", "address"}},
      {"pool null",
       [](Call& c) { c.params.cache.pool.data = nullptr; },
       kValue,
       {"pool:", "null pointer", "address"}},
      {"lengths with gaps",
       [](Call& c) { c.table().kv_len.strides[0] = 2; },
       kValue,
       {"kv_len:", "[2]", "contiguous"}},
      {"table columns apart",
       [](Call& c) { c.table().block_table.strides[1] = 2; },
       kValue,
       {"block_table:", "2]", "stride 1"}},
      {"table rank",
       [](Call& c) { c.table().block_table.ndim = 1; },
       kValue,
       {"block_table:", "[2]", "[batch_size, max_pages]"}},
  });
}

TEST(DecodeErrors, DenseMistakes) {
  const std::vector<Mistake> list{
      {"no k", [](Call& c) { c.kv.k = {}; }, kValue, {"k:", "nothing", "a tensor"}},
      {"v elsewhere", [](Call& c) { c.kv.v.device = kCuda0; }, kType, {"v:", "CUDA:0", "CPU"}},
      {"k FP32",
       [](Call& c) { c.kv.k.dtype = DType::kF32; },
       kType,
       {"k:", "float32", "bfloat16 or float16"}},
      {"v of another type",
       [](Call& c) { c.kv.v.dtype = DType::kF16; },
       kType,
       {"v:", "float16", "bfloat16 (the dtype of k)"}},
      {"k rank",
       [](Call& c) { c.kv.k.ndim = 3; },
       kValue,
       {"k:", "2, 16]", "[num_pages, num_kv_heads, page_size, head_dim]"}},
      {"k misaligned",
       [](Call& c) { c.kv.k.data = c.dense.data() + 1; },
       kValue,
       {"k:", "2 bytes past a multiple of 16", "alignment of 16"}},
      {"v token stride",
       [](Call& c) { c.kv.v.strides[2] = 129; },
       kValue,
       {"v:", "129", "multiple of 16 bytes in dimension 2"}},
      {"head_dim",
       [](Call& c) { c.kv.k.shape[3] = 96; },
       kValue,
       {"k: head_dim", "96", "64, 128, 256"}},
      {"page_size",
       [](Call& c) { c.kv.k.shape[2] = 12; },
       kValue,
       {"k: page_size", "12", "powers of two"}},
      {"v shape",
       [](Call& c) { c.kv.v.shape[1] = 1; },
       kValue,
       {"v:", "1 in dimension 1", "2 (the shape of k)"}},
      {"heads",
       [](Call& c) { c.params.q.shape[1] = 3; },
       kValue,
       {"q:", "num_qo_heads 3 with num_kv_heads 2", "multiple"}},
      {"page beyond the pool",
       [](Call& c) { c.block[0] = 1000; },
       kValue,
       {"block_table[0]:", "page 1000", "0 .. 5"}},
      {"no table",
       [](Call& c) { c.kv.table = {}; },
       kValue,
       {"table:", "no page table", "exactly one"}},
  };
  for (const Mistake& mistake : list) {
    Call call;
    mistake.make(call);
    expect_error(mistake, call, [&] { decode_dense(call.params, call.kv); });
    Call valid;
    decode_dense(valid.params, valid.kv);  // all-zero values
    EXPECT_NEAR(valid.lse[0], std::log(20.0), 1e-4 * std::log(20.0));
    EXPECT_EQ(valid.o[5], 0.0f);
  }
}

}  // namespace
}  // namespace foscar::test
