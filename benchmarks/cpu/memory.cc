#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace foscar::bench {
namespace {

// Eight independent sums: enough loads in flight for any memory.
std::uint64_t read_all(const std::uint8_t* p, std::size_t bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(p);
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= bytes / 8; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (std::uint64_t s : sums) sum += s;
  return sum;
}

std::atomic<std::uint64_t> sink;

}  // namespace

void Unmap::operator()(std::uint8_t* p) const { munmap(p, bytes); }

Buffer allocate(std::size_t bytes, bool huge_pages) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  madvise(p, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return Buffer(static_cast<std::uint8_t*>(p), Unmap{bytes});
}

void sweep_caches() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  static const Buffer buffer = [] {
    Buffer b = allocate(kBytes, true);
    std::fill_n(b.get(), kBytes, std::uint8_t{1});
    return b;
  }();
  sink = read_all(buffer.get(), kBytes);
}

double read_ceiling_gbps(int threads, bool huge_pages) {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  const Buffer buffer = allocate(kBytes, huge_pages);
  std::fill_n(buffer.get(), kBytes, std::uint8_t{1});
  const std::size_t share = kBytes / static_cast<std::size_t>(threads);
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> readers;
    for (int t = 0; t < threads; ++t) {
      readers.emplace_back(
          [&, t] { sink = read_all(buffer.get() + static_cast<std::size_t>(t) * share, share); });
    }
    for (std::thread& reader : readers) reader.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / seconds.count() * 1e-9);
  }
  return best;
}

}  // namespace foscar::bench
