// Bad arguments of quantize_append, dequantize, merge_states and decode_workspace_bytes, one row
// per mistake.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "problem.h"

namespace foscar::test {
namespace {

constexpr Device kCuda0{DeviceType::kCuda, 0};
constexpr ErrorKind kType = ErrorKind::kInvalidType, kValue = ErrorKind::kInvalidArgument;

void expect_error(const char* what, ErrorKind kind, const std::vector<std::string>& parts,
                  const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << what << ": no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << what << ": " << message;
    EXPECT_EQ(message.rfind(parts[0], 0), 0u)
        << what << ": '" << message << "' must begin with the argument";
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos)
          << what << ": '" << message << "' lacks '" << part << "'";
  }
}

// Three tokens into a pool of four pages of 16, two KV heads.
struct AppendCall {
  HostCache host = empty_cache({.kv_lens = {16}});
  std::vector<float> k = std::vector<float>(3 * 2 * 128 + 4, 1.0f), v = k;
  std::vector<std::int64_t> slots{0, 17, 63};
  Tensor k_rows = Tensor::contiguous(k.data(), DType::kF32, {3, 2, 128});
  Tensor v_rows = Tensor::contiguous(v.data(), DType::kF32, {3, 2, 128});
  Tensor slot_mapping = Tensor::contiguous(slots.data(), DType::kI64, {3});
  PagedKvCache cache{
      .format = host.g.format, .head_dim = 128, .page_size = 16, .pool = {}, .table = {}};
  AppendCall() {
    cache.pool = Tensor::contiguous(host.pool.data(), DType::kU8,
                                    {host.num_pages, 2, host.layout.page_head_bytes});
  }
  void run() { quantize_append(k_rows, v_rows, slot_mapping, cache); }
};

TEST(AppendErrors, EveryMistakeIsNamedAndHarmless) {
  const struct {
    const char* what;
    std::function<void(AppendCall&)> make;
    ErrorKind kind;
    std::vector<std::string> message;
  } list[] = {
      {"no k", [](AppendCall& c) { c.k_rows = {}; }, kValue, {"k:", "nothing", "a tensor"}},
      {"no v", [](AppendCall& c) { c.v_rows = {}; }, kValue, {"v:", "nothing", "a tensor"}},
      {"no slots",
       [](AppendCall& c) { c.slot_mapping = {}; },
       kValue,
       {"slot_mapping:", "nothing", "a tensor"}},
      {"v elsewhere",
       [](AppendCall& c) { c.v_rows.device = kCuda0; },
       kType,
       {"v:", "CUDA:0", "CPU"}},
      {"slots elsewhere",
       [](AppendCall& c) { c.slot_mapping.device = kCuda0; },
       kType,
       {"slot_mapping:", "CUDA:0", "CPU"}},
      {"pool elsewhere",
       [](AppendCall& c) { c.cache.pool.device = kCuda0; },
       kType,
       {"pool:", "CUDA:0", "CPU"}},
      {"k bytes",
       [](AppendCall& c) { c.k_rows.dtype = DType::kU8; },
       kType,
       {"k:", "uint8", "bfloat16 or float16 or float32"}},
      {"v of another type",
       [](AppendCall& c) { c.v_rows.dtype = DType::kBF16; },
       kType,
       {"v:", "bfloat16", "float32 (the dtype of k)"}},
      {"float slots",
       [](AppendCall& c) { c.slot_mapping.dtype = DType::kF32; },
       kType,
       {"slot_mapping:", "float32", "int32 or int64"}},
      {"pool of floats",
       [](AppendCall& c) { c.cache.pool.dtype = DType::kF32; },
       kType,
       {"pool:", "float32", "uint8"}},
      {"k rank",
       [](AppendCall& c) { c.k_rows.ndim = 2; },
       kValue,
       {"k:", "[3, 2]", "[num_tokens, num_kv_heads, head_dim]"}},
      {"k columns apart",
       [](AppendCall& c) { c.k_rows.strides[2] = 2; },
       kValue,
       {"k:", "2]", "stride 1"}},
      {"k between elements",
       [](AppendCall& c) { c.k_rows.data = reinterpret_cast<std::uint8_t*>(c.k.data()) + 2; },
       kValue,
       {"k:", "2 bytes past", "alignment of 4"}},
      {"slots with gaps",
       [](AppendCall& c) { c.slot_mapping.strides[0] = 2; },
       kValue,
       {"slot_mapping:", "[2]", "contiguous"}},
      {"pool misaligned",
       [](AppendCall& c) { c.cache.pool.data = c.host.pool.data() + 4; },
       kValue,
       {"pool:", "4 bytes past a multiple of 16", "alignment of 16"}},
      {"pages overlap",
       [](AppendCall& c) { c.cache.pool.strides[0] = 1280; },
       kValue,
       {"pool:", "1280", "its own place"}},
      {"page_size 0",
       [](AppendCall& c) { c.cache.page_size = 0; },
       kValue,
       {"page_size:", "0", "powers of two"}},
      {"pool too small",
       [](AppendCall& c) { c.cache.pool.shape[2] = 1264; },
       kValue,
       {"pool:", "1264 bytes", "1280"}},
      {"KV heads",
       [](AppendCall& c) { c.k_rows.shape[1] = 1; },
       kValue,
       {"k:", "1 in dimension 1", "2 (num_kv_heads"}},
      {"head_dim",
       [](AppendCall& c) { c.k_rows.shape[2] = 64; },
       kValue,
       {"k:", "64 in dimension 2", "128 (head_dim"}},
      {"v shape",
       [](AppendCall& c) { c.v_rows.shape[0] = 2; },
       kValue,
       {"v:", "2 in dimension 0", "3 (the shape of k)"}},
      {"slot count",
       [](AppendCall& c) { c.slot_mapping.shape[0] = 2; },
       kValue,
       {"slot_mapping:", "2", "3 (num_tokens of k)"}},
      {"slot beyond the pool",
       [](AppendCall& c) { c.slots[2] = 64; },
       kValue,
       {"slot_mapping[2]:", "64", "less than 64"}},
      {"slot far beyond",
       [](AppendCall& c) { c.slots[0] = std::int64_t{1} << 40; },
       kValue,
       {"slot_mapping[0]:", "1099511627776", "less than 64"}},
  };
  for (const auto& mistake : list) {
    AppendCall call;
    mistake.make(call);
    const std::vector<std::uint8_t> before = call.host.pool;
    expect_error(mistake.what, mistake.kind, mistake.message, [&] { call.run(); });
    EXPECT_EQ(call.host.pool, before) << mistake.what;
    AppendCall valid;
    valid.run();
    EXPECT_NE(valid.host.pool, before);
  }
}

TEST(AppendErrors, NothingToAppendIsLegal) {
  AppendCall call;
  const std::vector<std::uint8_t> before = call.host.pool;
  for (Tensor* t : {&call.k_rows, &call.v_rows, &call.slot_mapping}) {
    t->shape[0] = 0;
    t->data = nullptr;
  }
  call.run();
  EXPECT_EQ(call.host.pool, before);
}

TEST(DequantizeErrors, EveryMistakeIsNamedAndHarmless) {
  const Geometry g{.kv_lens = {20, 3}};
  HostCache host = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  struct Call {
    PagedKvCache cache;
    Tensor k, v;
    std::vector<std::int32_t> block, lens{20, 3};
  };
  const struct {
    const char* what;
    std::function<void(Call&)> make;
    ErrorKind kind;
    std::vector<std::string> message;
  } list[] = {
      {"no k_out", [](Call& c) { c.k = {}; }, kValue, {"k_out:", "nothing", "a tensor"}},
      {"v_out elsewhere", [](Call& c) { c.v.device = kCuda0; }, kType, {"v_out:", "CUDA:0", "CPU"}},
      {"pool elsewhere",
       [](Call& c) { c.cache.pool.device = kCuda0; },
       kType,
       {"pool:", "CUDA:0", "CPU"}},
      {"k_out ints",
       [](Call& c) { c.k.dtype = DType::kI32; },
       kType,
       {"k_out:", "int32", "float32"}},
      {"v_out of another type",
       [](Call& c) { c.v.dtype = DType::kF16; },
       kType,
       {"v_out:", "float16", "float32 (the dtype of k_out)"}},
      {"k_out rank",
       [](Call& c) { c.k.ndim = 3; },
       kValue,
       {"k_out:", "[2, 20, 2]", "[batch_size, max_kv_len, num_kv_heads, head_dim]"}},
      {"k_out rows overlap",
       [](Call& c) { c.k.strides[1] = 128; },
       kValue,
       {"k_out:", "128", "its own place"}},
      {"k_out heads",
       [](Call& c) { c.k.shape[2] = 1; },
       kValue,
       {"k_out:", "1 in dimension 2", "2 (num_kv_heads"}},
      {"v_out shape",
       [](Call& c) { c.v.shape[1] = 19; },
       kValue,
       {"v_out:", "19", "20 (the shape of k_out)"}},
      {"batch",
       [](Call& c) { c.k.shape[0] = c.v.shape[0] = 1; },
       kValue,
       {"block_table:", "2", "1 (batch_size)"}},
      {"too few rows",
       [](Call& c) { c.k.shape[1] = c.v.shape[1] = 19; },
       kValue,
       {"kv_len[0]:", "20 tokens", "at most 19"}},
      {"page beyond the pool",
       [](Call& c) { c.block[1] = 6; },
       kValue,
       {"block_table[0]:", "page 6", "0 .. 5"}},
  };
  for (const auto& mistake : list) {
    std::vector<float> k(2 * 20 * 2 * 128, 7.0f), v = k;
    Call call{
        .cache = {.format = g.format, .head_dim = 128, .page_size = 16, .pool = {}, .table = {}},
        .k = Tensor::contiguous(k.data(), DType::kF32, {2, 20, 2, 128}),
        .v = Tensor::contiguous(v.data(), DType::kF32, {2, 20, 2, 128}),
        .block = {host.pages[0][0], host.pages[0][1], host.pages[1][0], -1}};
    call.cache.pool = Tensor::contiguous(host.pool.data(), DType::kU8,
                                         {host.num_pages, 2, host.layout.page_head_bytes});
    call.cache.table.block_table = Tensor::contiguous(call.block.data(), DType::kI32, {2, 2});
    call.cache.table.kv_len = Tensor::contiguous(call.lens.data(), DType::kI32, {2});
    const Call valid = call;
    mistake.make(call);
    expect_error(mistake.what, mistake.kind, mistake.message,
                 [&] { dequantize(call.cache, call.k, call.v); });
    for (float x : k) ASSERT_EQ(x, 7.0f) << mistake.what;
    for (float x : v) ASSERT_EQ(x, 7.0f) << mistake.what;
    call.block = valid.block;
    Call again = valid;
    again.cache.table = valid.cache.table;  // still over call.block, which is valid again
    dequantize(again.cache, again.k, again.v);
    EXPECT_NE(k[0], 7.0f);
  }
}

TEST(MergeErrors, EveryMistakeIsNamedAndHarmless) {
  struct Call {
    Tensor v, lse, o, lse_out;
  };
  const struct {
    const char* what;
    std::function<void(Call&)> make;
    ErrorKind kind;
    std::vector<std::string> message;
  } list[] = {
      {"no v", [](Call& c) { c.v = {}; }, kValue, {"v:", "nothing", "a tensor"}},
      {"no lse", [](Call& c) { c.lse = {}; }, kValue, {"lse:", "nothing", "a tensor"}},
      {"no o", [](Call& c) { c.o = {}; }, kValue, {"o:", "nothing", "a tensor"}},
      {"lse elsewhere", [](Call& c) { c.lse.device = kCuda0; }, kType, {"lse:", "CUDA:0", "CPU"}},
      {"lse_out elsewhere",
       [](Call& c) { c.lse_out.device = kCuda0; },
       kType,
       {"lse_out:", "CUDA:0", "CPU"}},
      {"v ints",
       [](Call& c) { c.v.dtype = DType::kI32; },
       kType,
       {"v:", "int32", "float32 or float16 or bfloat16"}},
      {"lse half",
       [](Call& c) { c.lse.dtype = DType::kF16; },
       kType,
       {"lse:", "float16", "float32"}},
      {"o of another type",
       [](Call& c) { c.o.dtype = DType::kBF16; },
       kType,
       {"o:", "bfloat16", "float32 (the dtype of v)"}},
      {"v rank",
       [](Call& c) { c.v.ndim = 3; },
       kValue,
       {"v:", "[2, 3, 4]", "[num_states, num_rows, num_heads, head_dim]"}},
      {"v with gaps", [](Call& c) { c.v.strides[1] = 1000; }, kValue, {"v:", "1000", "contiguous"}},
      {"no states",
       [](Call& c) { c.v.shape[0] = c.lse.shape[0] = 0; },
       kValue,
       {"v:", "num_states 0", "at least 1"}},
      {"lse shape",
       [](Call& c) { c.lse.shape[0] = 1; },
       kValue,
       {"lse:", "[1, 3, 4]", "[2, 3, 4]"}},
      {"o shape", [](Call& c) { c.o.shape[0] = 2; }, kValue, {"o:", "[2, 4, 64]", "[3, 4, 64]"}},
      {"lse_out shape",
       [](Call& c) { c.lse_out.shape[0] = 2; },
       kValue,
       {"lse_out:", "[2, 4]", "[3, 4]"}},
  };
  for (const auto& mistake : list) {
    std::vector<float> v(2 * 3 * 4 * 64, 1.0f), lse(2 * 3 * 4, 0.0f), o(3 * 4 * 64, 7.0f),
        lse_out(3 * 4, 7.0f);
    Call call{Tensor::contiguous(v.data(), DType::kF32, {2, 3, 4, 64}),
              Tensor::contiguous(lse.data(), DType::kF32, {2, 3, 4}),
              Tensor::contiguous(o.data(), DType::kF32, {3, 4, 64}),
              Tensor::contiguous(lse_out.data(), DType::kF32, {3, 4})};
    const Call valid = call;
    mistake.make(call);
    expect_error(mistake.what, mistake.kind, mistake.message,
                 [&] { merge_states(call.v, call.lse, call.o, call.lse_out); });
    for (float x : o) ASSERT_EQ(x, 7.0f) << mistake.what;
    for (float x : lse_out) ASSERT_EQ(x, 7.0f) << mistake.what;
    merge_states(valid.v, valid.lse, valid.o, {});  // lse_out is optional
    EXPECT_EQ(o[0], 1.0f);
    EXPECT_EQ(lse_out[0], 7.0f);
  }
}

TEST(WorkspaceErrors, EveryMistakeIsNamed) {
  expect_error("batch", kValue, {"max_batch_size:", "-1", "at least 0"},
               [] { decode_workspace_bytes(-1, 1, 8, 2, 128, {}); });
  expect_error("qo_len", kValue, {"qo_len:", "0", "at least 1"},
               [] { decode_workspace_bytes(1, 0, 8, 2, 128, {}); });
  expect_error("heads", kValue, {"num_qo_heads:", "8 with num_kv_heads 3", "multiple"},
               [] { decode_workspace_bytes(1, 1, 8, 3, 128, {}); });
  expect_error("no KV heads", kValue, {"num_qo_heads:", "8 with num_kv_heads 0", "positive"},
               [] { decode_workspace_bytes(1, 1, 8, 0, 128, {}); });
  expect_error("head_dim", kValue, {"head_dim:", "100", "64, 128, 256"},
               [] { decode_workspace_bytes(1, 1, 8, 2, 100, {}); });
}

}  // namespace
}  // namespace foscar::test
