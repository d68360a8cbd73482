// A team's stream of pages: a ring of stages in shared memory, filled by bulk copies that the team's first warp
// issues, one mbarrier per stage.
//
// A stage holds one step (64 tokens). Pages of up to 64 tokens arrive as they are, one copy per page, one lane per
// copy; from larger pages one copy per 16-byte chunk plane fetches the step's 64 tokens, so that the stage looks like
// a page of 64. Either way token t of the step lies at token_offset(t) in each chunk plane. In pages of 8 tokens and more the
// eight rows of a matrix load are 128 contiguous bytes, free of bank conflicts; the odd strides of smaller pages (80, 144 ..
// bytes per token) spread them just as well.
#pragma once

#include "backends/cuda/decode/config.cuh"
#include "backends/cuda/decode/work.cuh"
#include "backends/cuda/ptx.cuh"

namespace foscar::cuda {

// A team's ring, in shared memory.
struct TeamRing {
  std::uint64_t full[kMaxStages];  // mbarriers: a step has arrived
  std::uint64_t
      empty[kMaxStages];  // mbarriers: all warps of the team have read it (teams of several warps)
  Cursor cursor;          // the stream's place at its last change of row
  const std::uint8_t* head;      // block of the row's KV head in page 0
  const std::int32_t* page_ids;  // of its request
  int line_end;                  // where the team's share ends on the line
};

// The issuing side, run by the team's first warp. What changes only from row to row lives in shared memory.
struct PageStream {
  TeamRing& shared;
  std::uint32_t stages;  // shared address of the ring's stages
  bool ended = true;     // no step is left to issue
  int next_stage = 0;
  int step;      // of the row: the next to issue
  int end_step;  // of the row, as far as the share goes
  int kv_len;
  std::int32_t page_a;  // this lane's page of the next step
  std::int32_t page_b;  // and the one 32 further on, for pages of one token

  __device__ PageStream(TeamRing& team, std::uint32_t ring) : shared(team), stages(ring) {}

  // From `start` to the end of the team's share, shared.line_end.
  __device__ void open(const DecodeKernelArgs& args, const Cursor& start) {
    ended = false;
    enter_row(args, start);
  }

  // Fills the next stage with the next step.
  __device__ void issue(const DecodeKernelArgs& args, int num_heads) {
    const std::uint32_t stage = stages + next_stage * args.stage.bytes;
    const std::uint32_t barrier = ptx::shared_address(&shared.full[next_stage]);
    if (args.table.page_size <= kStepTokens) {
      copy_whole_pages(args, stage, barrier);
    } else {
      copy_page_part(args, stage, barrier);
    }
    next_stage = next_stage + 1 == args.num_stages ? 0 : next_stage + 1;
    if (++step < end_step) {
      load_page_ids(args);
      return;
    }
    Cursor cursor = shared.cursor;
    ended = !cursor.row_follows(shared.line_end);
    if (ended) return;
    cursor.next_row(args, num_heads);
    __syncwarp();
    enter_row(args, cursor);
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void enter_row(const DecodeKernelArgs& args, const Cursor& cursor) {
    step = cursor.step;
    end_step = cursor.end_step(shared.line_end);
    kv_len = cursor.kv_len;
    if (lane() == 0) {
      shared.cursor = cursor;
      shared.head = args.pool.data + (cursor.head / args.row_blocks) * args.pool.head_stride;
      shared.page_ids = args.table.row(cursor.request);
    }
    __syncwarp();
    load_page_ids(args);
  }

  // Reads the page ids of the next step, each lane its own, one step before they are needed; entries beyond the
  // request's pages are not touched.
  __device__ void load_page_ids(const DecodeKernelArgs& args) {
    const std::int32_t* page_ids = shared.page_ids;
    const int first_token = step * kStepTokens;
    const int first_page = first_token >> args.page_log2;
    if (args.table.page_size >= kStepTokens) {
      page_a = __ldg(page_ids + first_page);
      return;
    }
    const int last = min(first_token + kStepTokens, kv_len) - 1;
    const int num_pages = (last >> args.page_log2) - first_page + 1;
    if (lane() < num_pages) page_a = __ldg(page_ids + first_page + lane());
    if (lane() + 32 < num_pages) page_b = __ldg(page_ids + first_page + lane() + 32);
  }

  __device__ void copy_whole_pages(const DecodeKernelArgs& args, std::uint32_t stage,
                                   std::uint32_t barrier) {
    if (args.table.page_size == kStepTokens) {
      if (lane() != 0) return;
      ptx::mbarrier_arrive_expect_tx(barrier, args.page_head_bytes);
      copy_page(args, stage, 0, page_a, barrier);
      return;
    }
    const int tokens = min(kStepTokens, kv_len - step * kStepTokens);
    const int num_pages = (tokens + args.stage.tokens_per_block - 1) >> args.stage.tokens_log2;
    // A copy may complete before the arrival that announces it: the phase ends only after both.
    if (lane() == 0) ptx::mbarrier_arrive_expect_tx(barrier, num_pages * args.page_head_bytes);
    if (lane() < num_pages) copy_page(args, stage, lane(), page_a, barrier);
    if (lane() + 32 < num_pages) copy_page(args, stage, lane() + 32, page_b, barrier);
  }
  __device__ void copy_page(const DecodeKernelArgs& args, std::uint32_t stage, int index,
                            std::int32_t page, std::uint32_t barrier) {
    ptx::bulk_copy(stage + index * args.page_head_bytes, shared.head + page * args.pool.page_stride,
                   args.page_head_bytes, barrier, ptx::kEvictFirst);
  }

  __device__ void copy_page_part(const DecodeKernelArgs& args, std::uint32_t stage,
                                 std::uint32_t barrier) {
    const int page_size = args.table.page_size;
    const int slot = step * kStepTokens & (page_size - 1);
    const int num_planes = args.stage.params_offset / args.stage.chunk_stride;
    const int params_bytes = kStepTokens * args.params_row_stride;
    if (lane() == 0)
      ptx::mbarrier_arrive_expect_tx(barrier, args.stage.params_offset + params_bytes);
    const std::uint8_t* page = shared.head + page_a * args.pool.page_stride;
#pragma unroll 1
    for (int plane = lane(); plane <= num_planes; plane += 32) {
      const bool is_params = plane == num_planes;
      const std::uint8_t* source = is_params
                                       ? page + args.params_offset + slot * args.params_row_stride
                                       : page + (plane * page_size + slot) * kChunkBytes;
      ptx::bulk_copy(stage + plane * args.stage.chunk_stride, source,
                     is_params ? params_bytes : args.stage.chunk_stride, barrier, ptx::kEvictFirst);
    }
  }
};

}  // namespace foscar::cuda
