// Where tensors lie must not matter: table forms, strides, padding, odd strides of extents of one,
// interleaved pools, and tables whose unused entries are hostile.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "oracle.h"

namespace foscar::test {
namespace {

HostCache gaussian_cache(const Geometry& g) {
  return make_cache(g, gaussian_rows(1), gaussian_rows(2));
}

TEST_P(Decode, TableFormsAgreeBitwise) {
  for (int page_size : {1, 16, 64}) {
    for (int chunk : {0, 128}) {
      const Geometry g{.page_size = page_size, .kv_lens = {17, 0, 64, 333, 1}};
      const HostCache cache = gaussian_cache(g);
      const Result block = run_decode(backend(), cache, gaussian_q(g), {.kv_chunk_size = chunk});
      EXPECT_TRUE(same_bits(block, run_decode(backend(), cache, gaussian_q(g),
                                              {.csr = true, .kv_chunk_size = chunk})));
    }
  }
}

TEST_P(Cases, H12_PaddingEntriesAreNeverUsed) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"), .kv_lens = {20, 1}};
  const HostCache cache = make_cache(g, constant_rows(0.0f), token_index_rows());
  const Result first =
      run_decode(backend(), cache, gaussian_q(g), {.table_filler = 0, .extra_columns = 6});
  for (std::int32_t filler : {-1, std::numeric_limits<std::int32_t>::max(), 12345678,
                              std::numeric_limits<std::int32_t>::min()}) {
    for (bool csr : {false, true}) {
      EXPECT_TRUE(same_bits(run_decode(backend(), cache, gaussian_q(g),
                                       {.csr = csr, .table_filler = filler, .extra_columns = 6}),
                            first));
    }
  }
  EXPECT_NEAR(first.o[0], 9.5, 9.5 * 2 * tolerance(backend(), output_dtype(backend(), g, {})).o);
}

TEST_P(Cases, H19_OutputRowsWithGaps) {
  for (int qo_len : {1, 3}) {
    const Geometry g{.qo_len = qo_len, .kv_lens = {1500, 40}};
    const HostCache cache = gaussian_cache(g);
    const Result compact = run_decode(backend(), cache, gaussian_q(g), {.kv_chunk_size = 256});
    for (int padding : {8, 1024}) {  // run_decode checks that the gaps stay as they were
      EXPECT_TRUE(same_bits(run_decode(backend(), cache, gaussian_q(g),
                                       {.kv_chunk_size = 256, .o_row_padding = padding}),
                            compact));
    }
  }
}

TEST_P(Cases, H32_PageStrideLargerThanThePayload) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g32-f32"), .kv_lens = {100, 50, 161}};
  const HostCache cache = gaussian_cache(g);
  const Result compact = run_decode(backend(), cache, gaussian_q(g));
  for (int padding : {16, 3840, 65536}) {
    EXPECT_TRUE(
        same_bits(run_decode(backend(), cache, gaussian_q(g), {.page_padding = padding}), compact))
        << padding;
  }
}

TEST_P(Cases, H44_QueriesInsidePackedQkv) {
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f32"}) {
    for (int qo_len : {1, 2}) {
      const Geometry g{.format = KvFormat::parse(name),
                       .num_qo_heads = 32,
                       .num_kv_heads = 4,
                       .qo_len = qo_len,
                       .kv_lens = {128, 128, 128, 128}};
      const HostCache cache = gaussian_cache(g);
      const Result compact = run_decode(backend(), cache, gaussian_q(g));
      EXPECT_TRUE(same_bits(
          run_decode(backend(), cache, gaussian_q(g), {.q_row_padding = 2 * 4 * 128}), compact));
    }
  }
}

TEST_P(Cases, H45_ExtentsOfOneMayCarryAnyStride) {
  const Geometry g{.num_qo_heads = 1, .num_kv_heads = 1, .kv_lens = {30}};
  const HostCache cache = gaussian_cache(g);
  const Result plain = run_decode(backend(), cache, gaussian_q(g));
  for (std::int64_t stride :
       {std::int64_t{1}, std::int64_t{7}, std::int64_t{1'000'000'000}, std::int64_t{-3}}) {
    EXPECT_TRUE(
        same_bits(run_decode(backend(), cache, gaussian_q(g), {.odd_stride = stride}), plain))
        << stride;
  }
}

// K and V pools of several layers interleaved page by page, and pools with the head outermost.
TEST_P(Cases, H47_InterleavedPools) {
  const Geometry g{.format = KvFormat::parse("k4v4-token-g128-f32"),
                   .num_qo_heads = 6,
                   .num_kv_heads = 3,
                   .kv_lens = {100, 7}};
  const HostCache cache = gaussian_cache(g);
  const Result compact = run_decode(backend(), cache, gaussian_q(g));
  const int block = cache.layout.page_head_bytes;
  EXPECT_TRUE(same_bits(
      run_decode(backend(), cache, gaussian_q(g), {.page_padding = 6 * 3 * block}), compact));
  EXPECT_TRUE(
      same_bits(run_decode(backend(), cache, gaussian_q(g), {.heads_outermost = true}), compact));
  EXPECT_TRUE(same_bits(
      run_decode(backend(), cache, gaussian_q(g), {.page_padding = 48, .heads_outermost = true}),
      compact));
}

// Memory for a pool larger than 2^32 bytes; on the host sparse, so that only touched pages cost
// anything.
class LargePool {
 public:
  LargePool(Place& place, std::size_t bytes) : place_(place), bytes_(bytes) {
    if (on_device()) {
      data_ = place.allocate(bytes);
      return;
    }
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~LargePool() {
    if (on_device()) {
      place_.release(data_);
    } else if (data_ != nullptr) {
      munmap(data_, bytes_);
    }
  }
  LargePool(const LargePool&) = delete;
  void* data() const { return data_; }

 private:
  bool on_device() const { return place_.device().type == DeviceType::kCuda; }
  Place& place_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

template <typename T>
Buffer upload(Place& place, const std::vector<T>& values) {
  return Buffer(place, values.data(), values.size() * sizeof(T));
}

TEST_P(Cases, H14_FarPages) {
  const Geometry g{.num_qo_heads = 8, .num_kv_heads = 8, .kv_lens = {16}};
  Place& place = *backend().place;
  const Device device = place.device();
  const PageLayout layout = make_page_layout(g.format, 128, 16);
  const std::int64_t page_bytes = std::int64_t{8} * layout.page_head_bytes, num_pages = 600'000;
  const LargePool pool(place, static_cast<std::size_t>(num_pages * page_bytes));  // 6.1 GB
  ASSERT_NE(pool.data(), nullptr) << "no address space";
  PagedKvCache cache{.format = g.format, .head_dim = 128, .page_size = 16, .pool = {}, .table = {}};
  cache.pool =
      Tensor::contiguous(pool.data(), DType::kU8, {num_pages, 8, layout.page_head_bytes}, device);
  const auto fill_page = [&](std::int64_t page, float value) {
    std::vector<std::int64_t> slots;
    for (int t = 0; t < 16; ++t) slots.push_back(page * 16 + t);
    const Buffer k = upload(place, std::vector<float>(16 * 8 * 128, 0.0f));
    const Buffer v = upload(place, std::vector<float>(16 * 8 * 128, value));
    const Buffer slot_mapping = upload(place, slots);
    quantize_append(Tensor::contiguous(k.data(), DType::kF32, {16, 8, 128}, device),
                    Tensor::contiguous(v.data(), DType::kF32, {16, 8, 128}, device),
                    Tensor::contiguous(slot_mapping.data(), DType::kI64, {16}, device), cache,
                    {.backend = backend().name});
  };
  const std::int64_t workspace_bytes =
      backend().is_cuda() ? decode_workspace_bytes(1, 1, 8, 8, 128, device) : 0;
  const Buffer workspace = upload(
      place, std::vector<std::uint8_t>(static_cast<std::size_t>(workspace_bytes), std::uint8_t{0}));
  const DType o_dtype = output_dtype(backend(), g, {});
  for (const std::int64_t page : {131'073, 262'145, 419'431, 524'289, 599'999}) {
    fill_page(page, 7.0f);
    // Where addresses would land that were cut to 31 or 32 bits.
    for (std::int64_t wrap : {std::int64_t{1} << 31, std::int64_t{1} << 32}) {
      const std::int64_t lower = page * page_bytes % wrap / page_bytes;
      for (std::int64_t other : {lower, lower + 1, std::int64_t{1}}) {
        if (other != page) fill_page(other, -1.0f);
      }
    }
    const Buffer table = upload(place, std::vector<std::int32_t>{static_cast<std::int32_t>(page)});
    const Buffer lens = upload(place, std::vector<std::int32_t>{16});
    cache.table.block_table = Tensor::contiguous(table.data(), DType::kI32, {1, 1}, device);
    cache.table.kv_len = Tensor::contiguous(lens.data(), DType::kI32, {1}, device);
    const Buffer q = upload(place, to_bytes(std::vector<float>(8 * 128, 1.0f), g.q_dtype));
    const Buffer o = upload(place, to_bytes(std::vector<float>(8 * 128, 0.0f), o_dtype));
    const Buffer lse = upload(place, std::vector<float>(8, 0.0f));
    decode({.q = Tensor::contiguous(q.data(), g.q_dtype, {1, 8, 128}, device),
            .cache = cache,
            .o = Tensor::contiguous(o.data(), o_dtype, {1, 8, 128}, device),
            .lse = Tensor::contiguous(lse.data(), DType::kF32, {1, 8}, device)},
           {.workspace = workspace.data(),
            .workspace_bytes = workspace_bytes,
            .backend = backend().name});
    const Tolerance tol = tolerance(backend(), o_dtype);
    for (float x : to_floats(o.download(), o_dtype)) {
      ASSERT_NEAR(x, 7.0, 7.0 * tol.o) << "page " << page;
    }
    for (float x : to_floats(lse.download(), DType::kF32)) {
      ASSERT_NEAR(x, std::log(16.0), tol.lse * std::log(16.0));
    }
  }
}

// Memory whose end is followed by a page that may not be touched.
class EndsAtAFence {
 public:
  explicit EndsAtAFence(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - page, page, PROT_NONE);
    data_ = base_ + mapped_ - page - bytes;
  }
  ~EndsAtAFence() { munmap(base_, mapped_); }
  EndsAtAFence(const EndsAtAFence&) = delete;
  void* data() const { return data_; }

 private:
  std::uint8_t *base_, *data_;
  std::size_t mapped_;
};

// Tables, lengths, queries and the pool end exactly where readable memory ends: a read beyond any
// of them crashes.
TEST_P(Cases, H11_NothingBehindTheTensorsIsRead) {
  if (backend().is_cuda()) GTEST_SKIP() << "host memory";
  for (const char* name : {"k2v2-token-g128-f32", "k4v4-token-g128-f16", "k2v2-token-g32-bf16"}) {
    for (int page_size : {1, 4, 64}) {
      for (int kv_len : {1, 5, 257}) {
        Geometry g{.format = KvFormat::parse(name), .page_size = page_size, .kv_lens = {kv_len}};
        HostCache cache = gaussian_cache(g);
        const std::vector<float> q = gaussian_q(g);
        const std::vector<std::uint8_t> q_bytes = to_bytes(q, g.q_dtype);
        const std::size_t columns = cache.pages[0].size();
        EndsAtAFence pool(cache.pool.size()), table(columns * 4), lens(4), q_memory(q_bytes.size()),
            o(q.size() * 4), lse(8 * 4);
        std::memcpy(pool.data(), cache.pool.data(), cache.pool.size());
        std::memcpy(table.data(), cache.pages[0].data(), columns * 4);
        std::memcpy(lens.data(), &kv_len, 4);
        std::memcpy(q_memory.data(), q_bytes.data(), q_bytes.size());
        DecodeParams params{.q = Tensor::contiguous(q_memory.data(), g.q_dtype, {1, 8, 128}),
                            .cache = {.format = g.format,
                                      .head_dim = 128,
                                      .page_size = page_size,
                                      .pool = {},
                                      .table = {}},
                            .o = Tensor::contiguous(o.data(), DType::kF32, {1, 8, 128}),
                            .lse = Tensor::contiguous(lse.data(), DType::kF32, {1, 8})};
        params.cache.pool = Tensor::contiguous(pool.data(), DType::kU8,
                                               {cache.num_pages, 2, cache.layout.page_head_bytes});
        params.cache.table.block_table =
            Tensor::contiguous(table.data(), DType::kI32, {1, static_cast<std::int64_t>(columns)});
        params.cache.table.kv_len = Tensor::contiguous(lens.data(), DType::kI32, {1});
        decode(params, {.backend = backend().name});
        Result result{std::vector<float>(q.size()), std::vector<float>(8)};
        std::memcpy(result.o.data(), o.data(), q.size() * 4);
        std::memcpy(result.lse.data(), lse.data(), 8 * 4);
        expect_matches(result, oracle_decode(cache, q), tolerance(backend(), DType::kF32), g);
      }
    }
  }
}

// Row 1 of a table begins where row 0 ends; reading one column too far would find row 1's first
// page.
TEST_P(Cases, H11_RowsWithoutPadding) {
  const Geometry g{.page_size = 64, .kv_lens = {257, 300}};
  expect_right(backend(), gaussian_cache(g), gaussian_q(g), {.extra_columns = 0});
}

// q and o at addresses that are multiples of their element size only. Host memory: the same bits.
// On a device a kernel may ask for more, by an error that names the argument.
TEST_P(Cases, H46_ElementAlignment) {
  const Geometry g{.kv_lens = {100}};
  const HostCache cache = gaussian_cache(g);
  const std::vector<float> q = gaussian_q(g);
  const Result aligned = run_decode(backend(), cache, q);
  Place& place = *backend().place;
  const Device device = place.device();
  const PlacedCache placed = place_cache(place, cache, {});
  const DType o_dtype = output_dtype(backend(), g, {});
  const std::int64_t workspace_bytes =
      backend().is_cuda() ? decode_workspace_bytes(1, 1, 8, 2, 128, device) : 0;
  const Buffer workspace = upload(
      place, std::vector<std::uint8_t>(static_cast<std::size_t>(workspace_bytes), std::uint8_t{0}));
  for (std::size_t shift : {std::size_t{2}, std::size_t{8}}) {
    const std::vector<std::uint8_t> q_bytes = to_bytes(q, g.q_dtype);
    const std::vector<std::uint8_t> zeros = to_bytes(std::vector<float>(q.size()), o_dtype);
    const std::size_t o_shift = o_dtype == DType::kF32 ? 2 * shift : shift;
    const Buffer q_buffer(place, q_bytes.data(), q_bytes.size(), shift);
    const Buffer o_buffer(place, zeros.data(), zeros.size(), o_shift);
    const Buffer lse_buffer(place, zeros.data(), 8 * 4, 4);
    try {
      decode({.q = Tensor::contiguous(q_buffer.data(), g.q_dtype, {1, 8, 128}, device),
              .cache = placed.cache,
              .o = Tensor::contiguous(o_buffer.data(), o_dtype, {1, 8, 128}, device),
              .lse = Tensor::contiguous(lse_buffer.data(), DType::kF32, {1, 8}, device)},
             {.workspace = workspace.data(),
              .workspace_bytes = workspace_bytes,
              .backend = backend().name});
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(backend().is_cuda()) << message;
      EXPECT_TRUE(message.starts_with("q:") || message.starts_with("o:")) << message;
      EXPECT_NE(message.find("align"), std::string::npos) << message;
      EXPECT_EQ(o_buffer.download(), zeros) << "an error wrote to o";
      continue;
    }
    EXPECT_TRUE(same_bits(
        {to_floats(o_buffer.download(), o_dtype), to_floats(lse_buffer.download(), DType::kF32)},
        aligned));
  }
}

}  // namespace
}  // namespace foscar::test
