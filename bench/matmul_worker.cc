// The matmuls of a forward pass alone, beside oneDNN's. `matmul_worker THREADS LAYERS OUTxIN,...`
// makes so many layers of products from random bf16 weights and obeys standard input, one command a
// line, one JSON object a line back:
//   weft ROWS            our kernels, weights as a checkpoint has them
//   rows ROWS            oneDNN, fp32 weights in the same order
//   blocked ROWS         oneDNN, fp32 weights in the order that it likes best, made beforehand
// Each answers with the seconds of all layers, their flops, and the sum of the last product's
// magnitudes, which is the same for all.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>
#if WEFT_WITH_ONEDNN
#include <dnnl.hpp>
#endif

#include "weft/engine/worker_pool.h"
#include "weft/kernels/convert.h"
#include "weft/kernels/matmul.h"
#include "weft/tensor/arena.h"

namespace weft::bench {
namespace {

namespace json = boost::json;

struct Size {
  std::size_t outputs = 0, inputs = 0;
};

// "2048x1024,1024x1024"
std::vector<Size> parse_sizes(const std::string& text) {
  std::istringstream in(text);
  std::vector<Size> sizes;
  char between = ',';
  for (Size size; between == ',' && in >> size.outputs >> between >> size.inputs; in >> between) {
    sizes.push_back(size);
  }
  return sizes;
}

class Memory {
 public:
  explicit Memory(std::size_t size_bytes) : arena_(Arena::blocking_allocate(size_bytes).value()) {}
  std::byte* bytes() { return arena_.bytes().data(); }
  float* floats() { return reinterpret_cast<float*>(bytes()); }
  std::span<float> all_floats() { return {floats(), arena_.bytes().size() / sizeof(float)}; }

 private:
  Arena arena_;
};

// One product: its weights in bf16 and, for the rival, in fp32.
struct Product {
  Size size;
  Memory bf16;
  Memory fp32;
};

double magnitude(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += std::abs(static_cast<double>(value));
  return sum;
}

class Products {
 public:
  Products(unsigned threads, std::size_t layers, const std::vector<Size>& sizes) : pool_(threads) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    for (std::size_t i = 0; i < layers * sizes.size(); ++i) {
      const Size size = sizes[i % sizes.size()];
      const std::size_t count = size.outputs * size.inputs;
      products_.push_back({size, Memory(2 * count), Memory(4 * count)});
      Product& product = products_.back();
      const auto values = product.fp32.all_floats().first(count);
      // A few thousand different rows are as good as a million, and sooner made.
      for (std::size_t j = 0; j < count; ++j)
        values[j] = j < 65'537 ? normal(random) : values[j - 65'537];
      kernels::convert(std::as_bytes(values), DType::kF32, {product.bf16.bytes(), 2 * count},
                       DType::kBF16);
      kernels::convert_to_f32({product.bf16.bytes(), 2 * count}, DType::kBF16, values);
    }
  }

  Result<json::object> obey(const std::string& line) {
    std::istringstream words(line);
    std::string rival;
    std::size_t rows = 0;
    words >> rival >> rows;
    std::size_t widest_in = 0, widest_out = 0;
    double flops = 0;
    for (const Product& product : products_) {
      widest_in = std::max(widest_in, product.size.inputs);
      widest_out = std::max(widest_out, product.size.outputs);
      flops += 2.0 * static_cast<double>(rows * product.size.outputs * product.size.inputs);
    }
    std::vector<float> input(rows * widest_in);
    std::mt19937 random(static_cast<unsigned>(rows));
    std::normal_distribution<float> normal;
    for (float& x : input) x = normal(random);
    Memory output(rows * widest_out * sizeof(float));
    WEFT_TRY(const double seconds, run(rival, rows, input, output));
    const std::size_t last = rows * products_.back().size.outputs;
    return json::object{{"seconds", seconds},
                        {"flops", flops},
                        {"magnitude", magnitude(output.all_floats().first(last))}};
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Result<double> run(const std::string& rival, std::size_t rows, std::span<const float> input,
                     Memory& output) {
    if (rival == "weft") return weft(rows, input, output);
#if WEFT_WITH_ONEDNN
    if (rival == "rows" || rival == "blocked") {
      return onednn(rival == "blocked", rows, input, output);
    }
#endif
    return Error(ErrorCode::kInvalidArgument, fmt::format("no such rival: {}", rival));
  }

  double weft(std::size_t rows, std::span<const float> input, Memory& output) {
    std::size_t floats = 0;
    for (const Product& product : products_) {
      floats = std::max(floats, kernels::packed_floats(shape_of(product, rows)));
    }
    Memory packed(floats * sizeof(float));
    Memory scratch(pool_.size() * kernels::kMatmulScratchFloats * sizeof(float));
    auto job = [&](unsigned worker) {
      const auto mine = scratch.all_floats().subspan(worker * kernels::kMatmulScratchFloats,
                                                     kernels::kMatmulScratchFloats);
      for (Product& product : products_) {
        const auto shape = shape_of(product, rows);
        const Range own_rows = part_of(rows, 1, worker, pool_.size());
        kernels::pack_rows(shape, input.first(rows * shape.k), own_rows.begin, own_rows.end,
                           packed.all_floats());
        pool_.barrier();
        const Range own = part_of(shape.n, kernels::kColumnStep, worker, pool_.size());
        kernels::matmul(shape, packed.all_floats(), product.bf16.bytes(), {}, own.begin, own.end,
                        output.floats(), shape.n, mine);
        pool_.barrier();
      }
    };
    const auto begin = Clock::now();
    pool_.run(job);
    return seconds_since(begin);
  }

  static kernels::MatmulShape shape_of(const Product& product, std::size_t rows) {
    return {.rows = rows, .n = product.size.outputs, .k = product.size.inputs};
  }

#if WEFT_WITH_ONEDNN
  double onednn(bool blocked, std::size_t rows, std::span<const float> input, Memory& output) {
    using dnnl::memory;
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    struct Call {
      dnnl::matmul primitive;
      std::unordered_map<int, memory> arguments;
    };
    std::vector<Call> calls;
    for (Product& product : products_) {
      const auto m = static_cast<memory::dim>(rows);
      const auto n = static_cast<memory::dim>(product.size.outputs);
      const auto k = static_cast<memory::dim>(product.size.inputs);
      const auto f32 = memory::data_type::f32;
      const memory::desc in({m, k}, f32, memory::format_tag::ab);
      const memory::desc as_it_lies({k, n}, f32, memory::format_tag::ba);
      const memory::desc any({k, n}, f32, memory::format_tag::any);
      const memory::desc out({m, n}, f32, memory::format_tag::ab);
      const dnnl::matmul::primitive_desc made(
          dnnl::matmul::desc(in, blocked ? any : as_it_lies, out), engine);
      memory weights(as_it_lies, engine, product.fp32.floats());
      if (made.weights_desc() != as_it_lies) {
        memory ordered(made.weights_desc(), engine);
        dnnl::reorder(weights, ordered).execute(stream, weights, ordered);
        weights = ordered;
      }
      calls.push_back({dnnl::matmul(made),
                       {{DNNL_ARG_SRC, memory(in, engine, const_cast<float*>(input.data()))},
                        {DNNL_ARG_WEIGHTS, weights},
                        {DNNL_ARG_DST, memory(out, engine, output.floats())}}});
    }
    stream.wait();
    const auto begin = Clock::now();
    for (Call& call : calls) call.primitive.execute(stream, call.arguments);
    stream.wait();
    return seconds_since(begin);
  }
#endif

  WorkerPool pool_;
  std::vector<Product> products_;
};

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: matmul_worker THREADS LAYERS OUTxIN,...\n");
    return 2;
  }
  weft::bench::Products products(static_cast<unsigned>(std::atoi(argv[1])),
                                 static_cast<std::size_t>(std::atoi(argv[2])),
                                 weft::bench::parse_sizes(argv[3]));
  std::puts(WEFT_WITH_ONEDNN ? "ready with onednn" : "ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = products.obey(line);
    const boost::json::object object =
        answer ? *answer : boost::json::object{{"error", answer.error().message()}};
    std::printf("%s\n", boost::json::serialize(object).c_str());
    std::fflush(stdout);
  }
  return 0;
}
