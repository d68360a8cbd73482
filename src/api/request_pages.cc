// Page tables on the host: who holds which page after requests are reordered or cut. No device, no memory of a cache.
#include <set>

#include "api/check_tensor.h"
#include "foscar/pages.h"

namespace foscar {
namespace {

int pages_for(int kv_len, int page_size) { return (kv_len + page_size - 1) / page_size; }

void check_requests(const RequestPages& requests, int page_size) {
  if (page_size < 1) {
    reject(ErrorKind::kInvalidArgument, "page_size", std::to_string(page_size), "at least 1");
  }
  if (requests.pages.size() != requests.kv_len.size()) {
    reject(ErrorKind::kInvalidArgument, "requests",
           std::to_string(requests.pages.size()) + " rows of pages",
           std::to_string(requests.kv_len.size()) + ", one per entry of kv_len");
  }
  for (std::size_t b = 0; b < requests.pages.size(); ++b) {
    const int needed = requests.kv_len[b] < 0 ? -1 : pages_for(requests.kv_len[b], page_size);
    if (static_cast<int>(requests.pages[b].size()) == needed) continue;
    reject(ErrorKind::kInvalidArgument, "requests[" + std::to_string(b) + "]",
           std::to_string(requests.pages[b].size()) + " pages",
           std::to_string(needed) + " for kv_len " + std::to_string(requests.kv_len[b]));
  }
}

// Pages of `before` that `after` does not hold.
std::vector<std::int32_t> no_longer_held(const RequestPages& before, const RequestPages& after) {
  std::set<std::int32_t> pages;
  for (const auto& row : before.pages) pages.insert(row.begin(), row.end());
  for (const auto& row : after.pages) {
    for (const std::int32_t page : row) pages.erase(page);
  }
  return {pages.begin(), pages.end()};
}

}  // namespace

ReorderPlan plan_reorder(const RequestPages& requests, std::span<const int> parents,
                         std::span<const std::int32_t> free_pages, int page_size) {
  check_requests(requests, page_size);
  ReorderPlan plan;
  std::set<std::int32_t> taken;  // partly filled pages that have an owner
  std::size_t next_free = 0;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const int parent = parents[i];
    if (parent < 0 || parent >= static_cast<int>(requests.pages.size())) {
      reject(
          ErrorKind::kInvalidArgument, "parents[" + std::to_string(i) + "]", std::to_string(parent),
          "0 .. " + std::to_string(static_cast<int>(requests.pages.size()) - 1) + ", the requests");
    }
    std::vector<std::int32_t> row = requests.pages[static_cast<std::size_t>(parent)];
    const int kv_len = requests.kv_len[static_cast<std::size_t>(parent)];
    if (kv_len % page_size != 0 && !taken.insert(row.back()).second) {
      if (next_free == free_pages.size()) {
        reject(ErrorKind::kInvalidArgument, "free_pages",
               std::to_string(free_pages.size()) + " pages",
               "one for each further child of a request with a partly filled page");
      }
      plan.copies.push_back({row.back(), free_pages[next_free]});
      row.back() = free_pages[next_free++];
    }
    plan.requests.pages.push_back(std::move(row));
    plan.requests.kv_len.push_back(kv_len);
  }
  plan.released = no_longer_held(requests, plan.requests);
  return plan;
}

std::vector<std::int32_t> truncate_request(RequestPages& requests, int b, int kv_len,
                                           int page_size) {
  check_requests(requests, page_size);
  if (b < 0 || b >= static_cast<int>(requests.pages.size())) {
    reject(
        ErrorKind::kInvalidArgument, "b", std::to_string(b),
        "0 .. " + std::to_string(static_cast<int>(requests.pages.size()) - 1) + ", the requests");
  }
  const auto index = static_cast<std::size_t>(b);
  if (kv_len < 0 || kv_len > requests.kv_len[index]) {
    reject(ErrorKind::kInvalidArgument, "kv_len", std::to_string(kv_len),
           "0 .. " + std::to_string(requests.kv_len[index]) + ", the tokens of request " +
               std::to_string(b));
  }
  RequestPages after = requests;
  after.kv_len[index] = kv_len;
  after.pages[index].resize(static_cast<std::size_t>(pages_for(kv_len, page_size)));
  if (kv_len % page_size != 0) {
    for (std::size_t other = 0; other < after.pages.size(); ++other) {
      for (const std::int32_t page : after.pages[other]) {
        if (other == index || page != after.pages[index].back()) continue;
        reject(ErrorKind::kInvalidArgument, "kv_len", std::to_string(kv_len),
               "a multiple of page_size " + std::to_string(page_size) +
                   ", or a last page that request " + std::to_string(other) +
                   " does not share (page " + std::to_string(page) + ")");
      }
    }
  }
  std::vector<std::int32_t> released = no_longer_held(requests, after);
  requests = std::move(after);
  return released;
}

}  // namespace foscar
