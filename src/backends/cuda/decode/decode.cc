#include "backends/cuda/decode/decode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cuda/launch.h"
#include "foscar/error.h"

namespace foscar::cuda {
namespace {

constexpr int kDefaultWarps = 16;
constexpr int kMaxTeamWarps = 8;
constexpr int kMaxRows = 1 << 16;  // qo_len * gqa_group_size
constexpr int kPreferredStages = 3;
constexpr std::int64_t kWorkspaceAlign = 256;

struct DeviceLimits {
  int num_sms;
  int shared_bytes;  // dynamic shared memory that one block may ask for
};

const DeviceLimits& device_limits(int device_index) {
  static const std::vector<DeviceLimits> limits = [] {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    std::vector<DeviceLimits> all(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      DeviceLimits& device = all[static_cast<std::size_t>(i)];
      check(cudaDeviceGetAttribute(&device.num_sms, cudaDevAttrMultiProcessorCount, i),
            "cudaDeviceGetAttribute");
      check(
          cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, i),
          "cudaDeviceGetAttribute");
    }
    return all;
  }();
  if (device_index < 0 || device_index >= static_cast<int>(limits.size())) {
    throw Error(ErrorKind::kInvalidArgument, "device: got index " + std::to_string(device_index) +
                                                 ", this machine has " +
                                                 std::to_string(limits.size()) + " CUDA devices");
  }
  return limits[static_cast<std::size_t>(device_index)];
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }
std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// Query rows per KV head.
int num_rows(const DecodeShape& shape) {
  const std::int64_t rows = std::int64_t{shape.qo_len} * shape.gqa_group_size();
  if (rows > kMaxRows) {
    throw Error(ErrorKind::kUnsupported, "q: " + std::to_string(rows) +
                                             " query rows per KV head, the cuda backend takes " +
                                             std::to_string(kMaxRows));
  }
  return static_cast<int>(rows);
}

// Warps that share a stream so that together they hold all rows, a power of two.
int team_size(int rows, int rows_per_warp) {
  const unsigned warps = static_cast<unsigned>(ceil_div(rows, rows_per_warp));
  return std::min(static_cast<int>(std::bit_ceil(warps)), kMaxTeamWarps);
}

struct Workspace {
  std::int64_t partials_offset;
  std::int64_t bytes;
};
Workspace workspace_layout(const DecodeShape& shape, int rows_per_warp, int num_blocks) {
  const std::int64_t team_warps = team_size(num_rows(shape), rows_per_warp);
  // The same for every shape, so that one workspace serves calls of all of them: what one call leaves in its partial
  // results never lies where another looks for counters.
  const std::int64_t arrivals = std::int64_t{4} * num_blocks;
  // Two per block for rows shared with other blocks, one per team for first rows.
  const std::int64_t partials = num_blocks * (2 + kMaxWarps / team_warps);
  const std::int64_t partial_bytes = 4 * team_warps * rows_per_warp * (shape.head_dim + 8);
  return {align_up(arrivals), align_up(arrivals) + align_up(partials * partial_bytes)};
}

// Pages of up to 64 tokens arrive whole. From larger ones a step's 64 tokens arrive plane by plane, and the stage looks
// like a page of 64.
StageLayout stage_layout(const PageLayout& layout) {
  const bool whole = layout.page_size <= kStepTokens;
  StageLayout stage{};
  stage.tokens_per_block = std::min(layout.page_size, kStepTokens);
  stage.tokens_log2 = log2_of(stage.tokens_per_block);
  stage.chunk_stride = stage.tokens_per_block * kChunkBytes;
  stage.v_codes_offset = layout.k.num_chunks * stage.chunk_stride;
  stage.params_offset = stage.v_codes_offset + layout.v.num_chunks * stage.chunk_stride;
  stage.params_row_stride = layout.k.params_row_stride;
  const int block_bytes = whole ? layout.page_head_bytes
                                : stage.params_offset + kStepTokens * layout.k.params_row_stride;
  stage.block_stride = block_bytes;
  stage.bytes = (kStepTokens / stage.tokens_per_block * block_bytes + 127) / 128 * 128;
  stage.tile_offset = stage.token_offset(kTileTokens);
  stage.half_offset = stage.token_offset(kHalfTokens);
  stage.half_params_offset = stage.params_row(kHalfTokens);
  return stage;
}

const std::vector<KernelEntry>& kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> all;
    for (const auto entries : {decode_kernels_k2v2(), decode_kernels_k4v4(), decode_kernels_k4v2(),
                               decode_kernels_k2v4()}) {
      all.insert(all.end(), entries.begin(), entries.end());
    }
    return all;
  }();
  return table;
}

void require_aligned(const char* name, const void* data, std::int64_t bytes) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
  if (address % bytes != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string(name) + ": address aligned to " + std::to_string(address & -address) +
                    " bytes, the cuda backend needs " + std::to_string(bytes));
  }
}

void require_strides(const char* name, const RowView& rows, std::int64_t multiple) {
  for (const std::int64_t stride : {rows.batch_stride, rows.token_stride, rows.head_stride}) {
    if (stride % multiple != 0) {
      throw Error(ErrorKind::kInvalidArgument,
                  std::string(name) + ": stride of " + std::to_string(stride) +
                      " elements leaves rows unaligned, the cuda backend needs multiples of " +
                      std::to_string(multiple));
    }
  }
}

}  // namespace

const KernelEntry& find_kernel(const DecodeShape& shape, const PageLayout& layout) {
  const bool one_group = layout.k.num_groups == 1 && layout.v.num_groups == 1;
  const KernelEntry* best = nullptr;
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.k_bits != layout.k.bits || entry.v_bits != layout.v.bits ||
        entry.head_dim != layout.head_dim)
      continue;
    if ((entry.groups == 1) != one_group) continue;
    // A second column tile reuses the operand registers; it is worth it only when there are rows to fill it. Its two
    // rows per lane share what they see, so several new tokens (which see different keys) take teams of single tiles.
    const bool two_tiles = shape.qo_len == 1 && num_rows(shape) > kRowsPerColumnTile;
    if (best == nullptr || (two_tiles && entry.column_tiles > best->column_tiles)) best = &entry;
  }
  if (best == nullptr) {
    throw Error(ErrorKind::kUnsupported, "head_dim: no cuda kernel for " +
                                             std::to_string(layout.head_dim) +
                                             "; supported are 64, 128, 256");
  }
  return *best;
}

DecodeLaunch choose_launch(const KernelEntry& kernel, const DecodeShape& shape,
                           const PageLayout& layout, int device_index) {
  const DeviceLimits& device = device_limits(device_index);
  DecodeLaunch launch{};
  launch.num_blocks = device.num_sms;
  launch.team_warps = team_size(num_rows(shape), kernel.rows_per_warp());
  launch.row_blocks = ceil_div(num_rows(shape), launch.team_warps * kernel.rows_per_warp());
  launch.stage = stage_layout(layout);
  launch.num_warps = std::min(kDefaultWarps, kernel.max_warps);
  launch.num_warps -= launch.num_warps % launch.team_warps;
  // Formats with many bytes per token get fewer warps rather than fewer than two stages each.
  for (;; launch.num_warps -= launch.team_warps) {
    const int teams = launch.num_warps / launch.team_warps;
    const int room = device.shared_bytes - kernel.fixed_shared_bytes(launch.num_warps);
    const int fitting = room / (teams * launch.stage.bytes);
    if (fitting < 2 && teams > 1) continue;
    if (fitting < 1) {
      throw Error(ErrorKind::kUnsupported,
                  "page format: a step of 64 tokens (" + std::to_string(launch.stage.bytes) +
                      " bytes) does not fit the shared memory of this device");
    }
    launch.num_stages = std::min({fitting, kPreferredStages, kMaxStages});
    launch.shared_bytes = kernel.fixed_shared_bytes(launch.num_warps) +
                          teams * launch.num_stages * launch.stage.bytes;
    return launch;
  }
}

bool has_code_for_current_device() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel_table().front().function) == cudaSuccess)
    return true;
  cudaGetLastError();
  return false;
}

Support supports_decode(const DecodeDesc& desc) {
  if (const std::string problem = format_problem(desc.format, desc.head_dim, desc.page_size);
      !problem.empty()) {
    return {false, problem};
  }
  if (desc.q_dtype != DType::kBF16 && desc.q_dtype != DType::kF16) {
    return {false, "q: dtype " + std::string(dtype_name(desc.q_dtype)) +
                       "; the cuda backend takes bfloat16 or float16"};
  }
  return {true, {}};
}

std::int64_t decode_workspace_bytes(const DecodeShape& shape, int device_index) {
  const int num_blocks = device_limits(device_index).num_sms;
  std::int64_t bytes = 0;
  for (const int column_tiles :
       {1, 2}) {  // the format, which is not known here, decides between them
    bytes = std::max(bytes,
                     workspace_layout(shape, column_tiles * kRowsPerColumnTile, num_blocks).bytes);
  }
  return bytes;
}

void decode(const DecodeArgs& args) {
  if (args.shape.batch_size == 0) return;
  if (args.kv_chunk_size != 0) {
    throw Error(ErrorKind::kUnsupported,
                "kv_chunk_size: got " + std::to_string(args.kv_chunk_size) +
                    ", the cuda backend supports 0 (schedule chosen on the device)");
  }
  require_aligned("q", args.q.data, 8);
  require_strides("q", args.q, 4);
  require_aligned("o", args.o.data, 4);
  require_strides("o", args.o, 2);
  const KernelEntry& kernel = find_kernel(args.shape, args.layout);
  const DecodeLaunch launch = choose_launch(kernel, args.shape, args.layout, args.device_index);
  // Steps are counted in 32 bits on the device; the tables bound them.
  const std::int64_t table_tokens = args.table.num_entries * args.layout.page_size;
  const std::int64_t line = (table_tokens / kStepTokens + 8LL * args.shape.batch_size) *
                            launch.row_blocks * args.shape.num_kv_heads;
  if (line > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorKind::kUnsupported,
                "cache: the page table spans " + std::to_string(table_tokens) +
                    " tokens, too many for one call of the cuda backend with these heads");
  }
  const Workspace workspace =
      workspace_layout(args.shape, kernel.rows_per_warp(), launch.num_blocks);
  if (args.workspace_bytes < workspace.bytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "workspace: got " + std::to_string(args.workspace_bytes) + " bytes, needs " +
                    std::to_string(workspace.bytes));
  }

  const PageLayout& layout = args.layout;
  std::uint8_t* base = static_cast<std::uint8_t*>(args.workspace);
  DecodeKernelArgs kernel_args{
      .shape = args.shape,
      .q = args.q,
      .o = args.o,
      .lse = args.lse,
      .pool = args.pool,
      .table = args.table,
      .page_log2 = log2_of(layout.page_size),
      .page_head_bytes = layout.page_head_bytes,
      .params_offset = layout.k.params_offset,
      .params_row_stride = layout.k.params_row_stride,
      .v_params_offset = layout.v.params_offset - layout.k.params_offset,
      .param_dtype = layout.param_dtype,
      .k_group_log2 = log2_of(layout.k.group_size / 32),
      .v_group_log2 = log2_of(layout.v.group_size / 32),
      .sm_scale_log2 = args.sm_scale * 1.44269504088896340736f,
      .hidden_tokens = args.causal ? args.shape.qo_len - 1 : 0,
      .num_rows = num_rows(args.shape),
      .row_blocks = launch.row_blocks,
      .team_warps = launch.team_warps,
      .num_stages = launch.num_stages,
      .stage = launch.stage,
      .partials = reinterpret_cast<float*>(base + workspace.partials_offset),
      .arrivals = reinterpret_cast<int*>(base),
  };
  const DeviceScope scope(args.device_index);
  // Always the device's limit, not what this call needs: the attribute belongs to the function, and another thread may be
  // about to launch it with more.
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             device_limits(args.device_index).shared_bytes),
        "cudaFuncSetAttribute");
  void* parameters[] = {&kernel_args};
  check(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(launch.num_blocks)),
                         dim3(static_cast<unsigned>(launch.num_warps * 32)), parameters,
                         static_cast<std::size_t>(launch.shared_bytes),
                         static_cast<cudaStream_t>(args.stream)),
        "decode launch");
}

}  // namespace foscar::cuda
