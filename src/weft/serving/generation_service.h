#pragma once
// GenerationService: runs generation requests on the engine and answers them, whole or as a stream.
// Thread-safe.
//
// Threads: run() is called on an I/O thread; the engine's events are only put aside on its thread;
// everything that costs time (decoding, stop strings, JSON) happens on the render thread.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "weft/base/job_thread.h"
#include "weft/engine/engine.h"
#include "weft/http/server.h"
#include "weft/serving/generation_request.h"
#include "weft/serving/served_model.h"

namespace weft {

class GenerationService {
 public:
  // Both must outlive this and every run that it started.
  GenerationService(Engine& engine, JobThread& render);
  ~GenerationService();

  // Answers through `exchange`, now or later. A client that goes away ends its sequences.
  // `model` is what the request was parsed for; what it says counts to the end.
  void run(GenerationRequest request, std::shared_ptr<const ServedModel> model,
           std::shared_ptr<http::Exchange> exchange);
  // Ends the requests with these ids (of the answer, with or without its prefix); without any, all.
  // They are answered with what they have and the finish reason "abort".
  void abort(std::span<const std::string> ids);
  // Requests that are being answered.
  std::size_t active() const;

 private:
  class Run;
  class Sink;
  class Registry;

  Engine& engine_;
  JobThread& render_;
  std::shared_ptr<Registry> registry_;
};

}  // namespace weft
