// Checks of a page table, and the one internal form that the two accepted forms become. Called by
// check.cc phase by phase, so that devices, dtypes, layouts and shapes of all arguments are checked
// in that order.
#pragma once

#include <cstdint>

#include "foscar/layout/paged_kv.h"
#include "foscar/tensor.h"

namespace foscar {

// Exactly one of the two forms, and all of its tensors.
void check_table_given(const PageTable& table);
void check_table_devices(const PageTable& table, Device device, const char* reference);
void check_table_dtypes(const PageTable& table);
void check_table_layout(const PageTable& table);
void check_table_shape(const PageTable& table, std::int64_t batch_size);
// What the host can see is checked: lengths, and the page ids that would be read. Nothing on a CUDA
// device. `max_kv_len` (tokens) bounds the lengths where the caller has room for only so many;
// negative: no bound.
void check_table_contents(const PageTable& table, int batch_size, int page_size,
                          std::int64_t num_pages, std::int64_t max_kv_len = -1);

PageTableView table_view(const PageTable& table, int page_size);

}  // namespace foscar
