#pragma once

#include "cpu/rank_pass.h"

namespace mok::cpu {

// One plain function per task kind. The equation stands over each definition.
void dispatch_x(const RankPass& d, const plan::Task& task);
void dispatch_d_y(const RankPass& d, const plan::Task& task);
void combine_y(const RankPass& d, const plan::Task& task);
void combine_d_x(const RankPass& d, const plan::Task& task);
void gate_up(const RankPass& d, const plan::Task& task);
void down(const RankPass& d, const plan::Task& task);
void down_dgrad(const RankPass& d, const plan::Task& task);
void gate_up_dgrad(const RankPass& d, const plan::Task& task);
void weight_gradient(const RankPass& d, const plan::Task& task);

}  // namespace mok::cpu
