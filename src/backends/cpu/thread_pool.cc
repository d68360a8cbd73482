#include "backends/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "foscar/error.h"

namespace foscar::cpu {
namespace {

// One call of run_pieces(), on the caller's stack. Lives until every piece is done and no worker
// holds it.
struct Job {
  const PieceFunction* function;
  std::int64_t num_pieces;
  int helpers_wanted;  // workers that may still join; guarded by the pool's mutex
  int helpers = 0;     // workers inside; guarded by the pool's mutex
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;  // guarded by the pool's mutex
};

// The processors that the calling thread may run on; empty if the system does not tell.
cpu_set_t allowed_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

class Pool {
 public:
  void run(Job& job) {
    std::unique_lock lock(mutex_);
    try {
      while (static_cast<int>(workers_.size()) < job.helpers_wanted) {
        workers_.reserve(workers_.size() + 1);
        std::thread worker([this] { work(); });
        workers_.push_back(worker.native_handle());
        worker.detach();
      }
    } catch (const std::system_error&) {
      // The system grants no more threads. Those that there are do the same work.
    }
    if (jobs_.empty()) steer_workers();
    const auto place = jobs_.insert(jobs_.end(), &job);
    generation_.fetch_add(1, std::memory_order_release);
    lock.unlock();
    wake_.notify_all();
    take_pieces(job);
    lock.lock();
    jobs_.erase(place);
    done_.wait(lock, [&job] { return job.helpers == 0; });
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  // Sends the workers to the caller's processors other than the one it is on. Left to itself the
  // system wakes a worker that has slept for some milliseconds on the processor of the thread that
  // wakes it, behind that thread, and takes milliseconds to move it: two threads were then no
  // faster than one (measured on Linux 6.18, two processors, calls of 0.4 ms, 10 ms apart).
  void steer_workers() {
    cpu_set_t set = allowed_processors();
    const int own = sched_getcpu();
    if (own < 0 || own >= CPU_SETSIZE) return;
    CPU_CLR(own, &set);
    if (CPU_COUNT(&set) == 0) return;
    if (CPU_EQUAL(&set, &steered_to_) && num_steered_ == workers_.size()) return;
    for (const pthread_t worker : workers_) pthread_setaffinity_np(worker, sizeof set, &set);
    steered_to_ = set;
    num_steered_ = workers_.size();
  }

  void take_pieces(Job& job) {
    try {
      for (std::int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.num_pieces;)
        (*job.function)(i);
    } catch (...) {
      job.next.store(job.num_pieces, std::memory_order_relaxed);
      const std::lock_guard guard(mutex_);
      if (!job.error) job.error = std::current_exception();
    }
  }

  Job* find_job() {
    for (Job* job : jobs_) {
      if (job->helpers_wanted > 0 && job->next.load(std::memory_order_relaxed) < job->num_pieces)
        return job;
    }
    return nullptr;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      Job* job = find_job();
      if (job == nullptr) {
        const std::uint64_t seen = generation_.load(std::memory_order_relaxed);
        lock.unlock();
        linger(seen);
        lock.lock();
        wake_.wait(lock,
                   [this, seen] { return generation_.load(std::memory_order_relaxed) != seen; });
        continue;
      }
      --job->helpers_wanted;
      ++job->helpers;
      lock.unlock();
      take_pieces(*job);
      lock.lock();
      if (--job->helpers == 0) done_.notify_all();
    }
  }

  // Decode calls of one model step follow each other within microseconds; sleeping and waking would
  // cost more.
  void linger(std::uint64_t seen) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
    while (generation_.load(std::memory_order_acquire) == seen &&
           std::chrono::steady_clock::now() < until) {
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::list<Job*> jobs_;
  std::atomic<std::uint64_t> generation_{0};
  std::vector<pthread_t> workers_;  // they never end
  cpu_set_t steered_to_{};          // where the first num_steered_ of them may run
  std::size_t num_steered_ = 0;
};

// Never destroyed: workers are parked in it when the process ends. A forked child forgets its
// parent's pool, whose threads do not exist there and whose mutex may be held by one of them.
std::atomic<Pool*> current_pool{nullptr};

Pool& pool() {
  static const bool registered =
      pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); }) == 0;
  static_cast<void>(registered);
  Pool* existing = current_pool.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  Pool* created = new Pool;
  if (current_pool.compare_exchange_strong(existing, created)) return *created;
  delete created;  // another thread was first; this one has no workers yet
  return *existing;
}

// FOSCAR_NUM_THREADS; `count` where it is not set or empty.
int thread_limit(int count) {
  const char* const value = std::getenv("FOSCAR_NUM_THREADS");
  if (value == nullptr || *value == '\0') return count;
  const std::string_view text(value);
  int limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc{} || end != text.data() + text.size() || limit < 1) {
    throw Error(ErrorKind::kInvalidArgument, "FOSCAR_NUM_THREADS: got '" +
                                                 std::string(text.substr(0, 40)) +
                                                 "', allowed a whole number from 1 to 2147483647");
  }
  return limit;
}

}  // namespace

int num_threads() {
  const cpu_set_t set = allowed_processors();
  int count = CPU_COUNT(&set);
  if (count == 0) count = static_cast<int>(std::thread::hardware_concurrency());
  count = std::max(count, 1);
  return std::min(count, thread_limit(count));
}

void run_pieces(std::int64_t num_pieces, const PieceFunction& function) {
  const auto helpers = static_cast<int>(std::min<std::int64_t>(num_threads(), num_pieces)) - 1;
  if (helpers <= 0) {
    for (std::int64_t i = 0; i < num_pieces; ++i) function(i);
    return;
  }
  Job job{
      .function = &function, .num_pieces = num_pieces, .helpers_wanted = helpers, .error = nullptr};
  pool().run(job);
}

}  // namespace foscar::cpu
