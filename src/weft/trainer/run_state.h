#pragma once
// RunState: all that a run needs to go on as if it had never stopped, as named tensors and values,
// and its one file.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/tensor/tensor.h"

namespace weft {

// A tensor that owns its bytes.
struct StateTensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;

  bool operator==(const StateTensor&) const = default;
};

struct RunState {
  std::map<std::string, StateTensor> tensors;  // by their names
  std::map<std::string, std::string> values;

  bool operator==(const RunState&) const = default;

  // The names get `prefix` in front.
  void put(const std::string& prefix, std::vector<StateTensor> some);
  // Every double comes back bit for bit.
  void put(const std::string& name, double value);
  void put(const std::string& name, std::uint64_t value);
  // Those that were put with this prefix, without it, by name.
  std::vector<StateTensor> tensors_of(const std::string& prefix) const;
  // Errors: kCorrupt naming what is not there, or is no number.
  Result<double> number(const std::string& name) const;
  Result<std::uint64_t> integer(const std::string& name) const;
  Result<std::string> text(const std::string& name) const;
};

// Something that has a state of its own. The names it puts begin with its own name.
class StatePart {
 public:
  virtual ~StatePart() = default;

  virtual void save(RunState& state) const = 0;
  // Errors: kCorrupt naming what is not there.
  virtual Result<void> restore(const RunState& state) = 0;
};

// As a safetensors file, whole or not at all: after this returned it survives a power cut, and
// until then the old file stands. Blocks. Errors: those of blocking_write_file.
Result<void> blocking_save_state(const std::filesystem::path& path, const RunState& state);
// Blocks. Errors: kNotFound; kCorrupt for what was not written by the above.
Result<RunState> blocking_load_state(const std::filesystem::path& path);

}  // namespace weft
