#include "io/rotation_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "foscar/dtype.h"
#include "io/file_error.h"
#include "io/restricted_pickle.h"
#include "io/safetensors_reader.h"
#include "io/safetensors_writer.h"
#include "io/zip_archive.h"

namespace foscar::io {
namespace {

constexpr int kMaxHeadDim = 1024, kMaxMatrices = 1024;
constexpr std::string_view kVersionKey = "foscar_rotation_version";

struct StorageType {
  std::string_view name;
  int bytes;
  float (*read)(const std::uint8_t*);
};
template <typename T>
T load(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
constexpr StorageType kStorageTypes[] = {
    {"FloatStorage", 4, [](const std::uint8_t* p) { return load<float>(p); }},
    {"DoubleStorage", 8, [](const std::uint8_t* p) { return static_cast<float>(load<double>(p)); }},
    {"HalfStorage", 2, [](const std::uint8_t* p) { return half_to_float(load<std::uint16_t>(p)); }},
    {"BFloat16Storage", 2,
     [](const std::uint8_t* p) { return bf16_to_float(load<std::uint16_t>(p)); }},
};

// Shape [D, D] or [N, D, D] into `layer`.
void set_shape(const std::string& path, const std::string& part,
               const std::vector<std::int64_t>& shape, LayerRotation& layer) {
  const std::size_t rank = shape.size();
  if ((rank != 2 && rank != 3) || shape[rank - 1] != shape[rank - 2] || shape[rank - 1] < 1 ||
      shape[rank - 1] > kMaxHeadDim || (rank == 3 && (shape[0] < 1 || shape[0] > kMaxMatrices))) {
    reject_file(
        path, part, "shape " + shape_text(shape),
        "[head_dim, head_dim] or [num_kv_heads, head_dim, head_dim], head_dim at most 1024");
  }
  layer.per_kv_head = rank == 3;
  layer.num_matrices = rank == 3 ? static_cast<int>(shape[0]) : 1;
  layer.head_dim = static_cast<int>(shape[rank - 1]);
}

void check_orthogonal(const std::string& path, const std::string& part,
                      const LayerRotation& layer) {
  const double error = orthogonality_error(layer);
  if (error <= kMaxOrthogonalityError) return;
  reject_file(path, part, "a matrix R with R R^T off the identity by " + std::to_string(error),
              "an orthogonal one, within " + std::to_string(kMaxOrthogonalityError));
}

LayerRotation read_tensor(const ZipArchive& archive, const std::string& root,
                          const std::string& part, const PickleValue& tensor) {
  const StorageType* type = nullptr;
  for (const StorageType& candidate : kStorageTypes) {
    if (candidate.name == tensor.type) type = &candidate;
  }
  if (type == nullptr) {
    reject_file(archive.path(), part, "elements of " + printable(tensor.type),
                "float32, float16, bfloat16 or float64");
  }
  LayerRotation layer;
  set_shape(archive.path(), part, tensor.shape, layer);
  const auto storage = archive.find(root + "data/" + tensor.text);
  const auto elements = static_cast<std::int64_t>(storage.size()) / type->bytes;
  // Every stride and extent is bounded before they are multiplied.
  std::int64_t last = tensor.offset;
  bool fits = last >= 0 && last < elements;
  for (std::size_t i = 0; i < tensor.shape.size() && fits; ++i) {
    fits = tensor.strides[i] <= elements;
    if (fits) last += (tensor.shape[i] - 1) * tensor.strides[i];
    fits = fits && last < elements;
  }
  if (!fits) {
    reject_file(archive.path(), part,
                "a tensor beyond its storage of " + std::to_string(elements) + " elements",
                "one inside it");
  }
  const std::size_t rank = tensor.shape.size();
  for (std::int64_t m = 0; m < layer.num_matrices; ++m) {
    for (std::int64_t i = 0; i < layer.head_dim; ++i) {
      for (std::int64_t j = 0; j < layer.head_dim; ++j) {
        const std::int64_t element = tensor.offset + (rank == 3 ? m * tensor.strides[0] : 0) +
                                     i * tensor.strides[rank - 2] + j * tensor.strides[rank - 1];
        layer.matrix.push_back(type->read(storage.data() + element * type->bytes));
      }
    }
  }
  check_orthogonal(archive.path(), part, layer);
  return layer;
}

std::string layer_part(std::int64_t id) { return "rotation of layer " + std::to_string(id); }

}  // namespace

double orthogonality_error(const LayerRotation& layer) {
  const auto dim = static_cast<std::size_t>(layer.head_dim);
  double worst = 0;
  for (int m = 0; m < layer.num_matrices; ++m) {
    const float* r = layer.matrix.data() + static_cast<std::size_t>(m) * dim * dim;
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double dot = i == j ? -1.0 : 0.0;
        for (std::size_t c = 0; c < dim; ++c)
          dot += static_cast<double>(r[i * dim + c]) * r[j * dim + c];
        if (!std::isfinite(dot)) return std::numeric_limits<double>::infinity();
        worst = std::max(worst, std::abs(dot));
      }
    }
  }
  return worst;
}

RotationFile read_rotation_pt(const std::string& path) {
  const ZipArchive archive(path);
  const std::string root = archive.root();
  const auto order = archive.find(root + "byteorder");
  if (order.data() != nullptr && std::string(order.begin(), order.end()) != "little") {
    reject_file(path, "archive", "another byte order", "little");
  }
  const RestrictedPickle pickle(path, archive.find(root + "data.pkl"));
  const PickleValue& top = pickle.root();
  const PickleValue* version = top.find("format_version");
  if (version == nullptr || version->kind != PickleValue::Kind::kInt || version->integer < 1 ||
      version->integer > 2) {
    reject_file(path, "format_version",
                version == nullptr ? "none" : std::to_string(version->integer), "1 or 2");
  }
  const bool wants_heads = version->integer == 2;
  const PickleValue* layers = top.find("layers");
  if (layers == nullptr || layers->kind != PickleValue::Kind::kDict || layers->items.empty()) {
    reject_file(path, "layers", "no dictionary of layers", "{id: {\"rotation\": tensor}}");
  }
  RotationFile file;
  if (const PickleValue* objective = top.find("objective")) file.objective = objective->text;
  for (std::size_t i = 0; i + 1 < layers->items.size(); i += 2) {
    const PickleValue &key = *layers->items[i], &layer = *layers->items[i + 1];
    // Ids are whole numbers, some writers store them as text.
    std::int64_t id = key.kind == PickleValue::Kind::kInt ? key.integer : -1;
    if (key.kind == PickleValue::Kind::kText) {
      std::from_chars(key.text.data(), key.text.data() + key.text.size(), id);
    }
    if (id < 0 || id > 1'000'000) {
      reject_file(path, "layers", "a key that is no layer id", "whole numbers from 0");
    }
    const PickleValue* rotation = layer.find("rotation");
    if (rotation == nullptr || rotation->kind != PickleValue::Kind::kTensor) {
      reject_file(path, layer_part(id), "no tensor 'rotation'", "one");
    }
    LayerRotation read = read_tensor(archive, root, layer_part(id), *rotation);
    if (read.per_kv_head != wants_heads) {
      reject_file(path, layer_part(id), "shape " + shape_text(rotation->shape),
                  wants_heads ? "[num_kv_heads, head_dim, head_dim] in version 2"
                              : "[head_dim, head_dim] in version 1");
    }
    if (!file.layers.emplace(static_cast<int>(id), std::move(read)).second) {
      reject_file(path, layer_part(id), "it twice", "every layer once");
    }
  }
  return file;
}

RotationFile read_rotation_safetensors(const std::string& path) {
  const SafetensorsReader reader(path);
  const auto& metadata = reader.header().metadata;
  const auto version = metadata.find(std::string(kVersionKey));
  if (version == metadata.end() || version->second != "1") {
    reject_file(path, "metadata",
                version == metadata.end() ? "no foscar_rotation_version"
                                          : "'" + printable(version->second) + "'",
                "foscar_rotation_version '1'");
  }
  RotationFile file;
  if (const auto it = metadata.find("objective"); it != metadata.end()) file.objective = it->second;
  for (const auto& [name, info] : reader.header().tensors) {
    constexpr std::string_view kPrefix = "layers.", kSuffix = ".rotation";
    int id = -1;
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) &&
        name.size() > kPrefix.size() + kSuffix.size()) {
      const char* end = name.data() + name.size() - kSuffix.size();
      if (std::from_chars(name.data() + kPrefix.size(), end, id).ptr != end) id = -1;
    }
    if (id < 0 || info.dtype != DType::kF32) {
      reject_file(path, tensor_part(name), printable(info.dtype_name),
                  "'layers.<id>.rotation' of F32");
    }
    LayerRotation layer;
    set_shape(path, tensor_part(name), info.shape, layer);
    const std::vector<std::uint8_t> bytes = reader.read(info);
    layer.matrix.resize(bytes.size() / sizeof(float));
    std::memcpy(layer.matrix.data(), bytes.data(), bytes.size());
    check_orthogonal(path, tensor_part(name), layer);
    if (!file.layers.emplace(id, std::move(layer)).second) {
      reject_file(path, tensor_part(name), "its layer twice", "every layer once");
    }
  }
  return file;
}

void write_rotation_safetensors(const std::string& path, const RotationFile& rotations) {
  std::vector<NamedTensor> tensors;
  for (const auto& [id, layer] : rotations.layers) {
    std::vector<std::int64_t> shape{layer.head_dim, layer.head_dim};
    if (layer.per_kv_head) shape.insert(shape.begin(), layer.num_matrices);
    tensors.push_back(
        {"layers." + std::to_string(id) + ".rotation", DType::kF32, shape, layer.matrix.data()});
  }
  write_safetensors(path, tensors,
                    {{std::string(kVersionKey), "1"}, {"objective", rotations.objective}});
}

}  // namespace foscar::io
