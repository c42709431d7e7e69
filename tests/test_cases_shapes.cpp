// Cases 12 and 14, and the shapes of public models scaled down.
// Sanitizers: asan
#include <fstream>
#include <nlohmann/json.hpp>

#include "layer_fixture.h"

namespace mok_test {
namespace {

// Widths that are no multiple of a tile were refused, or computed wrong in the last tile.
class Case12 : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};  // H, I
TEST_P(Case12, OddWidths) {
    const auto [hidden, intermediate] = GetParam();
    CaseOptions o = case_of(40, hidden, intermediate, 2, 2);
    o.biases = true;
    expect_right(cli::random_case(o), on_ranks(2));
}
INSTANTIATE_TEST_SUITE_P(Widths, Case12,
                         testing::Values(std::pair{2880, 704}, std::pair{2816, 96},
                                         std::pair{8192, 96}, std::pair{1408, 768},
                                         std::pair{640, 2880}, std::pair{8, 8}, std::pair{136, 24},
                                         std::pair{120, 264}, std::pair{264, 120}));

// What a shape or a tuning breaks is said in a sentence, on the host and before anything runs.
struct Refused {
    const char* named;  // what the sentence names
    std::function<void(LayerShape&, Tuning&)> spoil;
};
void PrintTo(const Refused& r, std::ostream* out) {
    *out << r.named;
}
class Case12Refused : public testing::TestWithParam<Refused> {};
TEST_P(Case12Refused, WithTheRule) {
    LayerShape shape = case_of(1).shape;
    Tuning tuning;
    GetParam().spoil(shape, tuning);
    for (const int ranks : {1, 2}) {
        const std::vector<Group> groups = Group::in_process(ranks);
        std::vector<std::string> sentences(ranks);
        cli::run_ranks(groups, [&](const Group& group) {
            try {
                Workspace w(group, shape, tuning, 16);
            } catch (const ShapeError& e) {
                sentences[group.rank()] = e.what();
            }
        });
        EXPECT_NE(sentences[0].find(GetParam().named), std::string::npos) << sentences[0];
        EXPECT_NE(sentences[0].find("found"), std::string::npos) << sentences[0];
        EXPECT_EQ(sentences.back(), sentences.front());
    }
}
INSTANTIATE_TEST_SUITE_P(
    Rules, Case12Refused,
    testing::Values(
        Refused{"hidden (H)", [](LayerShape& s, Tuning&) { s.hidden = 100; }},
        Refused{"hidden (H)", [](LayerShape& s, Tuning&) { s.hidden = 0; }},
        Refused{"hidden (H)", [](LayerShape& s, Tuning&) { s.hidden = int64_t{1} << 40; }},
        Refused{"intermediate (I)", [](LayerShape& s, Tuning&) { s.intermediate = 20; }},
        Refused{"intermediate (I)", [](LayerShape& s, Tuning&) { s.intermediate = -8; }},
        Refused{"shared_intermediate (S)",
                [](LayerShape& s, Tuning&) { s.shared_intermediate = 4; }},
        Refused{"num_experts (E)", [](LayerShape& s, Tuning&) { s.num_experts = 0; }},
        Refused{"top_k (K)", [](LayerShape& s, Tuning&) { s.top_k = 0; }},
        Refused{"top_k (K)", [](LayerShape& s, Tuning&) { s.top_k = 129; }},
        Refused{"activation.limit", [](LayerShape& s, Tuning&) { s.activation.limit = 0.0f; }},
        Refused{"activation.limit",
                [](LayerShape& s, Tuning&) { s.activation.limit = std::nanf(""); }},
        Refused{"activation.alpha",
                [](LayerShape& s, Tuning&) { s.activation.alpha = std::nanf(""); }},
        Refused{"minibatch_rows (b)", [](LayerShape&, Tuning& t) { t.minibatch_rows = 100; }},
        Refused{"macrobatch_rows (B)", [](LayerShape&, Tuning& t) { t.macrobatch_rows = 64; }},
        Refused{"minibatch_rows (b)",
                [](LayerShape&, Tuning& t) { t.macrobatch_rows = 128, t.minibatch_rows = 256; }},
        Refused{"context_rows (C)", [](LayerShape&, Tuning& t) { t.context_rows = 1; }},
        Refused{"max_workers", [](LayerShape&, Tuning& t) { t.max_workers = -1; }}));

// Tall weight gradients (few columns, very many rows) summed in low precision or overflowed an
// index; here 512 x 1024 over 147,456 rows scaled down.
TEST(Case14, TallWeightGradients) {
    CaseOptions o = case_of(20'001, 64, 32, 1, 1);
    o.biases = true;
    const RandomCase c = cli::random_case(o);
    GlobalOptions g = on_ranks(3);
    g.tuning.macrobatch_rows = 4096;
    g.tuning.minibatch_rows = 512;
    g.tuning.context_rows = 10'240;
    expect_right(c, g);
}

// ---- every row of data/shapes.json, a sixteenth as wide

struct Model {
    std::string name;
    CaseOptions options;
};

std::vector<Model> models() {
    std::ifstream file(MOK_SOURCE_DIR "/data/shapes.json");
    const nlohmann::json json = nlohmann::json::parse(file);
    std::vector<Model> all;
    for (const auto& [name, row] : json.items()) {
        if (name == "comment") continue;
        const auto narrow = [](int64_t width) { return std::max<int64_t>(8, width / 128 * 8); };
        // At most 32 experts, but enough for distinct choices.
        CaseOptions o =
            case_of(192, narrow(row.at("hidden")), narrow(row.at("intermediate")),
                    std::min(row.at("experts").get<int64_t>(), int64_t{32}), row.at("top_k"));
        const int64_t shared = row.at("shared");
        o.shape.shared_intermediate = shared * o.shape.intermediate;
        if (row.contains("activation")) {
            const auto& a = row.at("activation");
            o.shape.activation = {a.at("limit"), a.at("alpha"), a.at("beta")};
            o.biases = true;
        }
        all.push_back({name, o});
    }
    return all;
}

void PrintTo(const Model& m, std::ostream* out) {
    *out << m.name;
}
class NamedShapes : public testing::TestWithParam<Model> {};
TEST_P(NamedShapes, AgainstTheOracle) {
    const RandomCase c = cli::random_case(GetParam().options);
    GlobalOptions g = on_ranks(2, {128, 64});
    g.tuning.macrobatch_rows = 512;
    g.tuning.context_rows = 256;
    expect_right(c, g);
}
INSTANTIATE_TEST_SUITE_P(Models, NamedShapes, testing::ValuesIn(models()), [](const auto& info) {
    std::string name = info.param.name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
    return name;
});

}  // namespace
}  // namespace mok_test
