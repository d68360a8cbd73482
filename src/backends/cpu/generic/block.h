// A block: up to 256 tokens of one (request, KV head), small enough that codes, parameters and
// probabilities stay in the first-level cache while several steps pass over them. It is cut into
// tiles of 16 tokens; a page of 16 or more tokens is read in place, smaller pages are first copied
// together into tiles.
//
// Slots beyond the last token may hold anything. Their codes are read (any byte is a legal code,
// and their probability is 0), their parameters are replaced by 0 before any arithmetic, their
// page-table entries are not read.
#pragma once

#include <bit>
#include <cstring>

#include "backends/cpu/scratch.h"
#include "dispatch/backend.h"

namespace foscar::cpu {

struct Tile {
  const std::uint8_t* k;  // chunk 0 of the tile's first token; chunk c is at k + c * chunk_stride
  const std::uint8_t* v;  // the same for V
  const std::uint8_t* params;  // parameter row of the first token
};

struct TokenBlock {
  int begin;         // first token, counted in the request
  int num_tokens;    // 1 .. kMaxBlockTokens
  int num_tiles;     // ceil(num_tokens / 16)
  int chunk_stride;  // bytes
  Tile tiles[kMaxBlockTiles];
};

// Tokens per block: codes and parameters of a block take at most about 16 KB.
inline int block_tokens(const PageLayout& layout) {
  const int bytes = (layout.k.num_chunks + layout.v.num_chunks) * kChunkBytes;
  return bytes <= 64 ? 256 : 128;
}

// Page and slot of a token; page sizes are powers of two.
struct PageSlots {
  explicit PageSlots(int page_size)
      : shift(std::countr_zero(static_cast<unsigned>(page_size))), mask(page_size - 1) {}
  int page(int token) const { return token >> shift; }
  int slot(int token) const { return token & mask; }

  int shift;
  int mask;
};

inline const std::uint8_t* page_block(const PoolView& pool, std::int64_t page, int kv_head) {
  return pool.data + page * pool.page_stride + kv_head * pool.head_stride;
}

// Copies tokens of small pages to the tile's place in the scratch.
inline Tile stage_tile(const DecodeArgs& args, const std::int32_t* pages, int kv_head, int first,
                       int count, int tile, DecodeScratch& scratch) {
  const PageLayout& layout = args.layout;
  const PageSlots slots(layout.page_size);
  const int params_bytes = layout.k.params_row_stride;
  std::uint8_t* k = scratch.staged_codes[0] + tile * layout.k.num_chunks * 256;
  std::uint8_t* v = scratch.staged_codes[1] + tile * layout.v.num_chunks * 256;
  std::uint8_t* params = scratch.staged_params + kChunkBytes + tile * kTileTokens * params_bytes;
  for (int t = 0; t < count; ++t) {
    const int token = first + t;
    const int slot = slots.slot(token);
    const std::uint8_t* block = page_block(args.pool, pages[slots.page(token)], kv_head);
    for (int c = 0; c < layout.k.num_chunks; ++c) {
      std::memcpy(k + c * 256 + t * 16, block + chunk_offset(layout, layout.k, slot, c),
                  kChunkBytes);
    }
    for (int c = 0; c < layout.v.num_chunks; ++c) {
      std::memcpy(v + c * 256 + t * 16, block + chunk_offset(layout, layout.v, slot, c),
                  kChunkBytes);
    }
    std::memcpy(params + t * params_bytes, block + params_offset(layout, layout.k, slot, 0),
                static_cast<std::size_t>(params_bytes));
  }
  return {k, v, params};
}

inline TokenBlock gather_block(const DecodeArgs& args, const WorkItem& item, int begin, int end,
                               DecodeScratch& scratch) {
  const PageLayout& layout = args.layout;
  const std::int32_t* pages = args.table.row(item.request_idx);
  const PageSlots slots(layout.page_size);
  TokenBlock block;
  block.begin = begin;
  block.num_tokens = end - begin;
  block.num_tiles = (block.num_tokens + kTileTokens - 1) / kTileTokens;
  const bool in_place = layout.page_size >= kTileTokens;
  block.chunk_stride = (in_place ? layout.page_size : kTileTokens) * kChunkBytes;
  for (int i = 0; i < block.num_tiles; ++i) {
    const int first = begin + i * kTileTokens;
    if (in_place) {
      const int slot = slots.slot(first);
      const std::uint8_t* base = page_block(args.pool, pages[slots.page(first)], item.kv_head_idx);
      block.tiles[i] = {base + chunk_offset(layout, layout.k, slot, 0),
                        base + chunk_offset(layout, layout.v, slot, 0),
                        base + params_offset(layout, layout.k, slot, 0)};
    } else {
      const int count = end - first < kTileTokens ? end - first : kTileTokens;
      block.tiles[i] = stage_tile(args, pages, item.kv_head_idx, first, count, i, scratch);
    }
  }
  return block;
}

// Tokens that will be needed soon: the rest of this piece, then the start of the piece that this
// thread probably takes next. Misses to memory cost more than all arithmetic, and the hardware does
// not follow page tables. NOTE: everything here must be inlined. To GCC a prefetch is no effect: it
// deletes calls of functions that do only that.
class Prefetcher {
 public:
  Prefetcher(const DecodeArgs& args, const WorkItem& item, const WorkItem* next, int block_size)
      : args_(args), item_(item), next_(next), ahead_(block_size) {}

  // Asks for the tile one block after the one at `token`.
  [[gnu::always_inline]] void operator()(int token) const {
    token += ahead_;
    if (token < item_.kv_end) {
      request(item_, token);
    } else if (next_ != nullptr && token - item_.kv_end + next_->kv_begin < next_->kv_end) {
      request(*next_, token - item_.kv_end + next_->kv_begin);
    }
  }

 private:
  [[gnu::always_inline]] static void lines(const std::uint8_t* p, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
  }

  [[gnu::always_inline]] void request(const WorkItem& item, int token) const {
    const PageLayout& layout = args_.layout;
    const std::int32_t* pages = args_.table.row(item.request_idx);
    const PageSlots slots(layout.page_size);
    if (layout.page_size < kTileTokens) {
      for (int t = token; t < token + kTileTokens && t < item.kv_end; t += layout.page_size) {
        lines(page_block(args_.pool, pages[slots.page(t)], item.kv_head_idx),
              layout.page_head_bytes);
      }
      return;
    }
    const int slot = slots.slot(token);
    const std::uint8_t* base = page_block(args_.pool, pages[slots.page(token)], item.kv_head_idx);
    for (const SideLayout* side : {&layout.k, &layout.v}) {
      for (int c = 0; c < side->num_chunks; ++c) {
        lines(base + chunk_offset(layout, *side, slot, c), kTileTokens * kChunkBytes);
      }
    }
    lines(base + params_offset(layout, layout.k, slot, 0),
          kTileTokens * layout.k.params_row_stride);
  }

  const DecodeArgs& args_;
  const WorkItem& item_;
  const WorkItem* next_;  // null: none
  int ahead_;             // tokens
};

// Parameters of one tile into the scratch arrays, FP32 in lane order, 0 in slots that hold no
// token. A token's row of parameters is a run of 32-bit words: scale and offset in turn (FP32), or
// a scale and an offset in each word (16 bits). Four words of a vector of tokens at a time are
// transposed like codes.
template <typename Isa>
void load_params(const PageLayout& layout, const TokenBlock& block, int tile_idx,
                 DecodeScratch& scratch) {
  using F = typename Isa::F;
  using I = typename Isa::I;
  const int stride = layout.k.params_row_stride;
  const int num_words = stride / 4;
  const int k_groups = layout.k.num_groups;
  const bool full_width = layout.param_dtype == DType::kF32;
  for (int i = 0; i < kTileTokens; i += Isa::kLanes) {
    const int valid = block.num_tokens - tile_idx * kTileTokens - i;
    const std::uint8_t* rows = block.tiles[tile_idx].params + i * stride;
    const int begin = tile_idx * kTileTokens + i;
    const auto keep = [&](F value, float* out) {
      if (valid < Isa::kLanes) value = Isa::select_tokens(valid, value, Isa::set(0.0f));
      Isa::store(out + begin, value);
    };
    I x[4];
    if (full_width && num_words == 4) {  // the commonest row: one group each, FP32
      Isa::transpose4(rows, x);
      keep(Isa::as_float(x[0]), scratch.k_scale[0]);
      keep(Isa::as_float(x[1]), scratch.k_offset[0]);
      keep(Isa::as_float(x[2]), scratch.v_scale[0]);
      keep(Isa::as_float(x[3]), scratch.v_offset[0]);
      continue;
    }
    const auto scale_of = [&](int pair) {
      return pair < k_groups ? scratch.k_scale[pair] : scratch.v_scale[pair - k_groups];
    };
    const auto offset_of = [&](int pair) {
      return pair < k_groups ? scratch.k_offset[pair] : scratch.v_offset[pair - k_groups];
    };
    for (int word = 0; word < num_words; word += 4) {
      // The last words are read together with words before them, if need be from before the row:
      // behind the last row of a page there may be nothing to read.
      const int first = word + 4 <= num_words ? word : num_words - 4;
      Isa::transpose4(rows + first * 4, stride, x);
      for (int j = word - first; j < 4; ++j) {
        const int index = first + j;
        if (full_width) {
          keep(Isa::as_float(x[j]), index % 2 == 0 ? scale_of(index / 2) : offset_of(index / 2));
        } else {
          keep(Isa::low_half(x[j], layout.param_dtype), scale_of(index));
          keep(Isa::high_half(x[j], layout.param_dtype), offset_of(index));
        }
      }
    }
  }
  const auto zero = Isa::set(0.0f);
  const auto top = Isa::set(static_cast<float>(max_code(layout.v.bits)));
  const int begin = tile_idx * kTileTokens;
  for (int g = 0; g < layout.v.num_groups; ++g) {
    for (int t = begin; t < begin + kTileTokens; t += Isa::kLanes) {
      const auto minus_offset = Isa::sub(zero, Isa::load(scratch.v_offset[g] + t));
      const auto ratio = Isa::mul(minus_offset, Isa::reciprocal(Isa::load(scratch.v_scale[g] + t)));
      // 0 second: NaN (empty slot, poisoned token) becomes 0.
      Isa::store(scratch.v_cancel[g] + t, Isa::min(Isa::max(ratio, zero), top));
    }
  }
}

// V codes of one tile into scratch.v_quads. Slots beyond the block come along; their weights are 0.
template <typename Isa>
void interleave_values(const PageLayout& layout, const TokenBlock& block, int tile_idx,
                       DecodeScratch& scratch) {
  for (int c = 0; c < layout.v.num_chunks; ++c) {
    const std::uint8_t* codes = block.tiles[tile_idx].v + c * block.chunk_stride;
    std::uint8_t* out = scratch.v_quads[c] + tile_idx * kTileTokens * kChunkBytes;
    for (int q = 0; q < kTileTokens / 4; ++q) {
      typename Isa::I y[16 / Isa::kLanes];
      Isa::interleave4(codes + q * 64, y);
      for (int n = 0; n < 16 / Isa::kLanes; ++n)
        Isa::store_bytes(out + q * 64 + n * Isa::kLanes * 4, y[n]);
    }
  }
}

}  // namespace foscar::cpu
