#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/recorded_runs.h"
#include "cli/io/chart.h"

namespace mok::cli {

// Pictures of recorded benchmarks; nothing is measured here. A line for each shape and pass (and
// token count, where that is not the x axis), its points in the order of x. The device stands in
// the title.
//   minibatch       median time against minibatch rows, the floor of two full waves marked
//   speedup-tokens  peer's median over the layer's, against log2 of tokens a rank
//   speedup-skew    the same against the Zipf exponent of the routing, balanced being 0
//   memory-skew     workspace, context and peak in GiB against the Zipf exponent
// Throws std::invalid_argument for another kind, or where no record has what the picture shows.
io::LineChart bench_chart(std::string_view kind, const std::vector<RecordedPass>& records);

}  // namespace mok::cli
