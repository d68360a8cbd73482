// A team's stream of pages: a ring of stages in shared memory, filled by bulk copies that the team's first warp
// issues, one mbarrier per stage.
//
// A stage holds one step (64 tokens). Pages of up to 64 tokens arrive as they are, one copy per page, one lane per
// copy; from larger pages one copy per 16-byte chunk plane fetches the step's 64 tokens, so that the stage looks like
// a page of 64. Either way token t of the step lies at token_offset(t) in each chunk plane. In pages of 8 tokens and more the
// eight rows of a matrix load are 128 contiguous bytes, free of bank conflicts; the odd strides of smaller pages (80, 144 ..
// bytes per token) spread them just as well.
#pragma once

#include "backends/cuda/decode/half.cuh"
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

// The issuing side, run by the team's first warp. What changes only from row to row lives in shared memory. Page ids are
// read 32 at a time, one per lane, a step before the first of them is needed; a step's pages never straddle two such
// groups. (Pages of one token need 64 ids a step: a second register.)
struct PageStream {
  TeamRing& shared;
  bool ended = true;  // no step is left to issue
  int step;           // of the row: the next to issue
  int end_step;       // of the row, as far as the share goes
  std::int32_t ids;
  std::int32_t more_ids;

  __device__ explicit PageStream(TeamRing& team) : shared(team) {}

  // From `start` to the end of the team's share, shared.line_end.
  __device__ void open(const DecodeKernelArgs& args, const Cursor& start) {
    ended = false;
    enter_row(args, start);
  }

  // Fills the stage at `stage`, announced by `barrier`, with the next step.
  __device__ void issue(const DecodeKernelArgs& args, int num_heads, std::uint32_t stage,
                        std::uint32_t barrier) {
    const int first_page = step * kStepTokens >> args.page_log2;
    if (args.table.page_size == kStepTokens) {
      const std::int32_t page = __shfl_sync(~0u, ids, first_page);
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(barrier, args.page_head_bytes);
        copy_page(args, stage, page, barrier);
      }
    } else if (args.table.page_size < kStepTokens) {
      copy_whole_pages(args, first_page, stage, barrier);
    } else {
      copy_page_part(args, __shfl_sync(~0u, ids, first_page), stage, barrier);
    }
    if (++step < end_step) {
      const int next_page = step * kStepTokens >> args.page_log2;
      if (next_page % 32 == 0) load_page_ids(args, next_page);
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
  __device__ void enter_row(const DecodeKernelArgs& args, const Cursor& cursor) {
    step = cursor.step;
    end_step = cursor.end_step(shared.line_end);
    if (lane_index() == 0) {
      shared.cursor = cursor;
      shared.head = args.pool.data + (cursor.head / args.row_blocks) * args.pool.head_stride;
      shared.page_ids = args.table.row(cursor.request);
    }
    __syncwarp();
    load_page_ids(args, step * kStepTokens >> args.page_log2);
  }

  // Reads the ids of the aligned group of pages that holds first_page; entries beyond the request's pages are not touched.
  __device__ void load_page_ids(const DecodeKernelArgs& args, int first_page) {
    const std::int32_t* page_ids = shared.page_ids;
    const int last_page = (shared.cursor.kv_len - 1) >> args.page_log2;
    const int page = first_page / 32 * 32 + lane_index();
    if (page <= last_page) ids = __ldg(page_ids + page);
    if (args.table.page_size == 1 && page + 32 <= last_page) more_ids = __ldg(page_ids + page + 32);
  }

  __device__ void copy_whole_pages(const DecodeKernelArgs& args, int first_page,
                                   std::uint32_t stage, std::uint32_t barrier) {
    const int tokens = min(kStepTokens, shared.cursor.kv_len - step * kStepTokens);
    const int num_pages = (tokens + args.stage.tokens_per_block - 1) >> args.stage.tokens_log2;
    const int lane = lane_index();
    const std::int32_t page = __shfl_sync(~0u, ids, first_page + lane);
    // A copy may complete before the arrival that announces it: the phase ends only after both.
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(barrier, num_pages * args.page_head_bytes);
    const std::uint32_t block = stage + lane * args.page_head_bytes;
    if (lane < num_pages) copy_page(args, block, page, barrier);
    if (lane + 32 < num_pages)
      copy_page(args, block + 32 * args.page_head_bytes, more_ids, barrier);
  }
  __device__ void copy_page(const DecodeKernelArgs& args, std::uint32_t block, std::int32_t page,
                            std::uint32_t barrier) {
    const std::uint64_t offset = static_cast<std::uint64_t>(static_cast<std::uint32_t>(page)) *
                                 static_cast<std::uint32_t>(args.pool.page_stride);
    ptx::bulk_copy(block, shared.head + offset, args.page_head_bytes, barrier, ptx::kEvictFirst);
  }

  __device__ void copy_page_part(const DecodeKernelArgs& args, std::int32_t page_id,
                                 std::uint32_t stage, std::uint32_t barrier) {
    const int page_size = args.table.page_size;
    const int slot = step * kStepTokens & (page_size - 1);
    const int num_planes = args.stage.params_offset / args.stage.chunk_stride;
    const int params_bytes = kStepTokens * args.params_row_stride;
    if (lane_index() == 0)
      ptx::mbarrier_arrive_expect_tx(barrier, args.stage.params_offset + params_bytes);
    const std::uint8_t* page = shared.head + page_id * args.pool.page_stride;
#pragma unroll 1
    for (int plane = lane_index(); plane <= num_planes; plane += 32) {
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
