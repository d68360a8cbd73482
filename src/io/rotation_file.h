// Calibrated rotations of a model, layer by layer. Two kinds of file:
//
//   .pt            what OSCAR publishes, a torch.save of {"format_version", "objective", "source_grouping", "layers": {id:
//                  {"layer_id", "rotation", "eigenvalues"}}}; version 1 has one matrix [head_dim, head_dim] per layer
//                  (source_grouping "layer"), version 2 one per KV head, [num_kv_heads, head_dim, head_dim]
//                  ("per_kv_head"). Read without executing anything (restricted_pickle.h).
//   .safetensors   tensors "layers.<id>.rotation", metadata foscar_rotation_version "1" and objective
//
// A matrix must be finite and orthogonal: one that is not would spoil every logit without a sign.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace foscar::io {

struct LayerRotation {
  int num_matrices = 1;  // 1: shared by all heads, else one per KV head
  bool per_kv_head = false;
  int head_dim = 0;
  std::vector<float> matrix;  // [num_matrices, head_dim, head_dim]; a row x becomes x R
};

struct RotationFile {
  std::string objective;                // what it was calibrated for; may be empty
  std::map<int, LayerRotation> layers;  // by layer id
};

// FP32, FP16, BF16 and FP64 (rounded) tensors are read. Throws Error{kFile}.
RotationFile read_rotation_pt(const std::string& path);
RotationFile read_rotation_safetensors(const std::string& path);
void write_rotation_safetensors(const std::string& path, const RotationFile& rotations);

// The largest |entry| of R R^T - I over all matrices; infinity if one is not finite.
double orthogonality_error(const LayerRotation& layer);
inline constexpr double kMaxOrthogonalityError = 1e-2;

}  // namespace foscar::io
