// The workspace of CUDA backends: the size that the library asks for is enough, nothing less is
// accepted, and one serves calls of all sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "oracle.h"

namespace foscar::test {
namespace {

// The workspace that the library asks for is enough; less, or none, or a misaligned one is an
// error.
TEST_P(Cases, H67_WorkspaceOfTheNeededSize) {
  if (!backend().is_cuda()) GTEST_SKIP() << "only CUDA backends use a workspace";
  const Geometry g{.format = KvFormat::parse("k2v2-token-g64-f32"),
                   .head_dim = 256,
                   .num_qo_heads = 64,
                   .num_kv_heads = 4,
                   .kv_lens = std::vector<int>(528, 64)};
  Place& place = *backend().place;
  const Device device = place.device();
  const std::int64_t needed = decode_workspace_bytes(g.batch_size(), 1, 64, 4, 256, device);
  const HostCache host = make_cache(g, gaussian_rows(1), gaussian_rows(2));
  const PlacedCache placed = place_cache(place, host, {});
  const std::vector<std::uint8_t> q = to_bytes(gaussian_q(g), g.q_dtype), poison(q.size(), 0xFF),
                                  zeros(static_cast<std::size_t>(needed) + 256, 0);
  const Buffer q_buffer(place, q.data(), q.size()), o_buffer(place, poison.data(), poison.size()),
      workspace(place, zeros.data(), zeros.size());
  const auto rows = [&](const Buffer& buffer) {
    return Tensor::contiguous(buffer.data(), g.q_dtype, {g.batch_size(), 64, 256}, device);
  };
  const DecodeParams params{
      .q = rows(q_buffer), .cache = placed.cache, .o = rows(o_buffer), .lse = {}};
  const auto message = [&](void* data, std::int64_t bytes) -> std::string {
    try {
      decode(params, {.workspace = data, .workspace_bytes = bytes, .backend = backend().name});
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const std::string size = std::to_string(needed);
  for (const auto& [data, bytes, given] :
       {std::tuple{workspace.data(), needed - 1, std::to_string(needed - 1)},
        std::tuple{static_cast<void*>(nullptr), needed, std::string("a null pointer")}}) {
    const std::string text = message(data, bytes);
    EXPECT_EQ(text.rfind("workspace:", 0), 0u) << text;
    EXPECT_NE(text.find(given), std::string::npos) << text;
    EXPECT_NE(text.find("at least " + size), std::string::npos) << text;
  }
  EXPECT_NE(
      message(static_cast<std::uint8_t*>(workspace.data()) + 16, needed).find("alignment of 256"),
      std::string::npos);
  EXPECT_EQ(o_buffer.download(), poison) << "an error wrote to o";
  EXPECT_EQ(message(workspace.data(), needed), "");
  EXPECT_NE(o_buffer.download(), poison);
}

// Engines allocate one workspace, for their largest batch, and zero it once. No call may leave
// anything in it that another call, of other sizes, takes for its counters.
TEST_P(Cases, H67_OneWorkspaceForCallsOfAllSizes) {
  if (!backend().is_cuda()) GTEST_SKIP() << "only CUDA backends use a workspace";
  Place& place = *backend().place;
  const auto problem = [](int batch_size, int kv_len, int qo_len) {
    return Geometry{.num_qo_heads = 8,
                    .num_kv_heads = 2,
                    .qo_len = qo_len,
                    .kv_lens = std::vector<int>(static_cast<std::size_t>(batch_size), kv_len)};
  };
  // Rows shared by many blocks, so that partial results and counters are in use; the last batch has
  // more rows than the first has bytes of counters.
  const std::vector<Geometry> problems{problem(1, 20000, 1), problem(40, 500, 1),
                                       problem(3, 4000, 5), problem(200, 300, 1)};
  std::int64_t bytes = 0;
  for (const Geometry& g : problems) {
    bytes = std::max(bytes, decode_workspace_bytes(g.batch_size(), g.qo_len, g.num_qo_heads,
                                                   g.num_kv_heads, g.head_dim, place.device()));
  }
  const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(bytes), 0);
  const Buffer workspace(place, zeros.data(), zeros.size());
  for (int round = 0; round < 2; ++round) {
    for (const Geometry& g : problems) {
      const HostCache cache = make_cache(g, gaussian_rows(1), gaussian_rows(2));
      const std::vector<float> q = gaussian_q(g);
      EXPECT_TRUE(same_bits(run_decode(backend(), cache, q),
                            run_decode(backend(), cache, q,
                                       {.workspace = workspace.data(), .workspace_bytes = bytes})))
          << g.text() << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace foscar::test
