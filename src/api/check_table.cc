// See check_table.h.
#include "api/check_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "api/check_tensor.h"

namespace foscar {
namespace {

struct Named {
  const char* name;
  const Tensor* tensor;
};

std::array<Named, 3> csr_tensors(const PageTable& t) {
  return {Named{"kv_indptr", &t.kv_indptr}, Named{"kv_indices", &t.kv_indices},
          Named{"kv_last_page_len", &t.kv_last_page_len}};
}

std::array<Named, 2> block_tensors(const PageTable& t) {
  return {Named{"block_table", &t.block_table}, Named{"kv_len", &t.kv_len}};
}

bool any_given(const auto& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Named& n) { return n.tensor->defined(); });
}

bool is_csr(const PageTable& table) { return table.kv_indptr.defined(); }

// Applies `check(name, tensor)` to the tensors of the form that was given.
template <typename Check>
void each_tensor(const PageTable& table, const Check& check) {
  if (is_csr(table)) {
    for (const Named& n : csr_tensors(table)) check(n.name, *n.tensor);
  } else {
    for (const Named& n : block_tensors(table)) check(n.name, *n.tensor);
  }
}

std::string indexed(const char* name, std::int64_t b) {
  return std::string(name) + "[" + std::to_string(b) + "]";
}

void check_pages(const std::string& row_name, const std::int32_t* row, std::int64_t count,
                 std::int64_t num_pages) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (row[i] >= 0 && row[i] < num_pages) continue;
    reject(ErrorKind::kInvalidArgument, row_name,
           "page " + std::to_string(row[i]) + " at entry " + std::to_string(i),
           "0 .. " + std::to_string(num_pages - 1) + " (pages of the pool)");
  }
}

void check_fits(const std::string& name, std::int64_t tokens, std::int64_t max_kv_len) {
  if (max_kv_len < 0 || tokens <= max_kv_len) return;
  reject(ErrorKind::kInvalidArgument, name, std::to_string(tokens) + " tokens",
         "at most " + std::to_string(max_kv_len) + " (rows of the output)");
}

void check_csr_contents(const PageTable& table, int batch_size, int page_size,
                        std::int64_t num_pages, std::int64_t max_kv_len) {
  const PageTableView view = table_view(table, page_size);
  const std::int64_t nnz = table.kv_indices.shape[0];
  if (view.indptr[0] != 0) {
    reject(ErrorKind::kInvalidArgument, "kv_indptr[0]", std::to_string(view.indptr[0]), "0");
  }
  // The whole array before any use of it: row b is only safe to read when indptr[b + 1] is.
  for (int b = 0; b < batch_size; ++b) {
    const std::int64_t begin = view.indptr[b], end = view.indptr[b + 1];
    if (end < begin || end > nnz) {
      reject(ErrorKind::kInvalidArgument, indexed("kv_indptr", b + 1), std::to_string(end),
             std::to_string(begin) + " .. " + std::to_string(nnz) +
                 " (from its predecessor to nnz_pages)");
    }
  }
  for (int b = 0; b < batch_size; ++b) {
    const std::int64_t count = static_cast<std::int64_t>(view.indptr[b + 1]) - view.indptr[b];
    if (count == 0) continue;
    if (view.lens[b] < 1 || view.lens[b] > page_size) {
      reject(ErrorKind::kInvalidArgument, indexed("kv_last_page_len", b),
             std::to_string(view.lens[b]), "1 .. " + std::to_string(page_size) + " (page_size)");
    }
    if (count * page_size > std::numeric_limits<std::int32_t>::max()) {
      reject(ErrorKind::kInvalidArgument, indexed("kv_indptr", b + 1),
             std::to_string(count * page_size) + " tokens in one request",
             "at most " + std::to_string(std::numeric_limits<std::int32_t>::max()));
    }
    check_fits(indexed("kv_indptr", b + 1), view.kv_len(b), max_kv_len);
    check_pages("kv_indices of request " + std::to_string(b), view.row(b), count, num_pages);
  }
}

void check_block_contents(const PageTable& table, int batch_size, int page_size,
                          std::int64_t num_pages, std::int64_t max_kv_len) {
  const PageTableView view = table_view(table, page_size);
  const std::int64_t max_pages = table.block_table.shape[1];
  for (int b = 0; b < batch_size; ++b) {
    const std::int64_t tokens = view.lens[b];
    if (tokens < 0 || tokens > max_pages * page_size) {
      reject(ErrorKind::kInvalidArgument, indexed("kv_len", b), std::to_string(tokens),
             "0 .. " + std::to_string(max_pages * page_size) + " (max_pages * page_size)");
    }
    check_fits(indexed("kv_len", b), tokens, max_kv_len);
    check_pages(indexed("block_table", b), view.row(b), (tokens + page_size - 1) / page_size,
                num_pages);
  }
}

}  // namespace

void check_table_given(const PageTable& table) {
  const bool csr = any_given(csr_tensors(table));
  const bool block = any_given(block_tensors(table));
  if (csr == block) {
    reject(ErrorKind::kInvalidArgument, "table",
           csr ? "tensors of both page-table forms" : "no page table",
           "exactly one of (kv_indptr, kv_indices, kv_last_page_len) and (block_table, kv_len)");
  }
  if (csr) {
    for (const Named& n : csr_tensors(table)) require_given(n.name, *n.tensor);
  } else {
    for (const Named& n : block_tensors(table)) require_given(n.name, *n.tensor);
  }
}

void check_table_devices(const PageTable& table, Device device, const char* reference) {
  each_tensor(table, [&](const char* name, const Tensor& t) {
    require_device(name, t, device, reference);
  });
}

void check_table_dtypes(const PageTable& table) {
  each_tensor(table,
              [](const char* name, const Tensor& t) { require_dtype(name, t, {DType::kI32}); });
}

void check_table_layout(const PageTable& table) {
  each_tensor(table, [&](const char* name, const Tensor& t) {
    if (&t == &table.block_table) {
      require_rank(name, t, {2}, "[batch_size, max_pages]");
      require_inner_contiguous(name, t);
    } else {
      require_rank(name, t, {1},
                   &t == &table.kv_indices  ? "[nnz_pages]"
                   : &t == &table.kv_indptr ? "[batch_size + 1]"
                                            : "[batch_size]");
      require_contiguous(name, t);
    }
    require_aligned(name, t, dtype_bytes(DType::kI32));
  });
}

void check_table_shape(const PageTable& table, std::int64_t batch_size) {
  if (is_csr(table)) {
    require_extent("kv_indptr", table.kv_indptr, 0, batch_size + 1, "batch_size + 1");
    require_extent("kv_last_page_len", table.kv_last_page_len, 0, batch_size, "batch_size");
    return;
  }
  require_extent("block_table", table.block_table, 0, batch_size, "batch_size");
  require_extent("kv_len", table.kv_len, 0, batch_size, "batch_size");
}

void check_table_contents(const PageTable& table, int batch_size, int page_size,
                          std::int64_t num_pages, std::int64_t max_kv_len) {
  const Device device = is_csr(table) ? table.kv_indptr.device : table.kv_len.device;
  if (device.type != DeviceType::kCpu || batch_size == 0) return;
  if (is_csr(table)) {
    check_csr_contents(table, batch_size, page_size, num_pages, max_kv_len);
  } else {
    check_block_contents(table, batch_size, page_size, num_pages, max_kv_len);
  }
}

PageTableView table_view(const PageTable& table, int page_size) {
  const auto ints = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  if (is_csr(table)) {
    return {ints(table.kv_indptr),
            ints(table.kv_indices),
            ints(table.kv_last_page_len),
            0,
            page_size,
            table.kv_indices.shape[0]};
  }
  // Up to the last entry of the last row: what lies behind it need not exist.
  const std::int64_t batch_size = table.block_table.shape[0];
  const std::int64_t row_stride = used_stride(table.block_table, 0);
  const std::int64_t num_entries =
      batch_size == 0 ? 0 : (batch_size - 1) * row_stride + table.block_table.shape[1];
  return {nullptr, ints(table.block_table), ints(table.kv_len), row_stride, page_size, num_entries};
}

}  // namespace foscar
