#include "io/saved_cache.h"

#include <array>
#include <charconv>
#include <cstring>

#include "foscar/error.h"
#include "io/file_error.h"
#include "io/safetensors_reader.h"
#include "io/safetensors_writer.h"

namespace foscar::io {
namespace {

constexpr std::string_view kVersion = "1";
constexpr std::array<std::string_view, 6> kMetadataKeys{
    "foscar_cache_version", "format", "head_dim", "page_size", "num_kv_heads", "num_pages"};
constexpr std::array<std::string_view, 3> kTensorNames{"pool", "block_table", "kv_len"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  for (const std::string_view known : names) {
    if (known == name) return true;
  }
  return false;
}

// One metadata entry; throws when it is absent.
const std::string& entry(const SafetensorsReader& reader, std::string_view key) {
  const auto& metadata = reader.header().metadata;
  const auto it = metadata.find(std::string(key));
  if (it == metadata.end()) {
    reject_file(reader.path(), "metadata", "no '" + std::string(key) + "'",
                "a saved cache (foscar quantize writes one)");
  }
  return it->second;
}

int int_entry(const SafetensorsReader& reader, std::string_view key) {
  const std::string& text = entry(reader, key);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1) {
    reject_file(reader.path(), "metadata", std::string(key) + " '" + printable(text) + "'",
                "a whole number from 1 to 2^31 - 1");
  }
  return value;
}

// Throws unless the tensor has this type and shape; -1 in `shape` allows any extent from 1 up.
const TensorInfo& expect_tensor(const SafetensorsReader& reader, const std::string& name,
                                DType dtype, std::vector<std::int64_t> shape,
                                const std::string& hint) {
  const TensorInfo& info = reader.get(name, hint);
  bool fits = info.dtype == dtype && info.shape.size() == shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] < 0 ? info.shape[i] >= 1 : info.shape[i] == shape[i];
  }
  if (!fits) {
    reject_file(reader.path(), tensor_part(name), info.dtype_name + " " + shape_text(info.shape),
                hint);
  }
  return info;
}

std::vector<std::int32_t> read_int32(const SafetensorsReader& reader, const TensorInfo& info) {
  const std::vector<std::uint8_t> bytes = reader.read(info);
  std::vector<std::int32_t> values(bytes.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void check_table(const std::string& path, const SavedCache& cache) {
  for (std::int64_t b = 0; b < cache.batch_size; ++b) {
    const std::int64_t length = cache.kv_len[static_cast<std::size_t>(b)];
    const std::int64_t longest = cache.max_pages * cache.page_size;
    if (length < 0 || length > longest) {
      reject_file(path, "tensor 'kv_len'",
                  std::to_string(length) + " at [" + std::to_string(b) + "]",
                  "0 to " + std::to_string(longest));
    }
    for (std::int64_t i = 0; i * cache.page_size < length; ++i) {
      const std::int64_t page =
          cache.block_table[static_cast<std::size_t>(b * cache.max_pages + i)];
      if (page < 0 || page >= cache.num_pages) {
        reject_file(
            path, "tensor 'block_table'",
            std::to_string(page) + " at [" + std::to_string(b) + ", " + std::to_string(i) + "]",
            "a page id from 0 to " + std::to_string(cache.num_pages - 1));
      }
    }
  }
}

}  // namespace

void write_saved_cache(const std::string& path, const SavedCache& cache) {
  const std::array<NamedTensor, 3> tensors{
      NamedTensor{"pool",
                  DType::kU8,
                  {cache.num_pages, cache.num_kv_heads, cache.layout().page_head_bytes},
                  cache.pool.data()},
      NamedTensor{"block_table",
                  DType::kI32,
                  {cache.batch_size, cache.max_pages},
                  cache.block_table.data()},
      NamedTensor{"kv_len", DType::kI32, {cache.batch_size}, cache.kv_len.data()}};
  write_safetensors(path, tensors,
                    {{"foscar_cache_version", std::string(kVersion)},
                     {"format", cache.format.name()},
                     {"head_dim", std::to_string(cache.head_dim)},
                     {"page_size", std::to_string(cache.page_size)},
                     {"num_kv_heads", std::to_string(cache.num_kv_heads)},
                     {"num_pages", std::to_string(cache.num_pages)}});
}

SavedCache read_saved_cache(const std::string& path) {
  const SafetensorsReader reader(path);
  const std::string& version = entry(reader, "foscar_cache_version");
  if (version != kVersion) {
    reject_file(path, "metadata", "foscar_cache_version '" + printable(version) + "'",
                "'" + std::string(kVersion) + "', the one this version reads");
  }
  for (const auto& [key, value] : reader.header().metadata) {
    if (!contains(kMetadataKeys, key)) {
      reject_file(path, "metadata", "'" + printable(key) + "'", "only the entries of version 1");
    }
  }
  for (const auto& [name, info] : reader.header().tensors) {
    if (!contains(kTensorNames, name)) {
      reject_file(path, tensor_part(name), "this tensor", "only pool, block_table and kv_len");
    }
  }

  SavedCache cache;
  const std::string& format = entry(reader, "format");
  try {
    cache.format = KvFormat::parse(format);
  } catch (const Error& error) {
    reject_file(path, "metadata", "format '" + printable(format) + "'",
                "a format of this version (" + printable(error.what()) + ")");
  }
  cache.head_dim = int_entry(reader, "head_dim");
  cache.page_size = int_entry(reader, "page_size");
  cache.num_kv_heads = int_entry(reader, "num_kv_heads");
  cache.num_pages = int_entry(reader, "num_pages");
  if (const std::string problem = format_problem(cache.format, cache.head_dim, cache.page_size);
      !problem.empty()) {
    reject_file(path, "metadata", cache.format.name() + " with " + printable(problem),
                "a supported combination");
  }

  const std::int64_t page_head_bytes = cache.layout().page_head_bytes;
  const std::vector<std::int64_t> pool_shape{cache.num_pages, cache.num_kv_heads, page_head_bytes};
  const TensorInfo& pool =
      expect_tensor(reader, "pool", DType::kU8, pool_shape, "U8 " + shape_text(pool_shape));
  const TensorInfo& table =
      expect_tensor(reader, "block_table", DType::kI32, {-1, -1}, "I32 [batch_size, max_pages]");
  cache.batch_size = table.shape[0];
  cache.max_pages = table.shape[1];
  const TensorInfo& lengths = expect_tensor(reader, "kv_len", DType::kI32, {cache.batch_size},
                                            "I32 [" + std::to_string(cache.batch_size) + "]");
  cache.block_table = read_int32(reader, table);
  cache.kv_len = read_int32(reader, lengths);
  check_table(path, cache);
  cache.pool = reader.read(pool);
  return cache;
}

}  // namespace foscar::io
