#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "cli/io/chart.h"
#include "cli/io/chart_frame.h"

namespace mok::io {
namespace {

int count(const std::string& text, const std::string& part) {
    int num = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++num;
    return num;
}

// Every opened element is closed in its turn.
bool is_balanced(const std::string& xml) {
    std::vector<std::string> open;
    const std::regex tag("<(/?)([a-z]+)([^<>]*)>");
    for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end; ++it) {
        const std::string name = (*it)[2];
        const std::string rest = (*it)[3];
        if ((*it)[1] == "/") {
            if (open.empty() || open.back() != name) return false;
            open.pop_back();
        } else if (rest.empty() || rest.back() != '/') {
            open.push_back(name);
        }
    }
    return open.empty();
}

// The y of the grid line whose tick bears this label: the line is written right before it.
double tick_y(const std::string& svg, const std::string& label) {
    const std::regex tick("class=\"grid\"[^>]* y2=\"([0-9.]+)\"/>\n<text[^>]*>" + label +
                          "</text>");
    std::smatch match;
    if (!std::regex_search(svg, match, tick)) return std::nan("");
    return std::stod(match[1]);
}

TEST(RoundTicks, AreRoundAndHoldTheRange) {
    struct Case {
        double low, high, step, first, last;
        int num_decimals;
    };
    // By hand: the smallest of 1, 2, 5 times a power of ten that needs at most 6 steps, roughly.
    for (const Case& one :
         {Case{0, 6, 1, 0, 6, 0}, Case{0, 7, 2, 0, 8, 0}, Case{2.3, 8.0, 1, 2, 8, 0},
          Case{0, 0.5, 0.1, 0, 0.5, 1}, Case{-3, 3, 1, -3, 3, 0}, Case{0, 12000, 2000, 0, 12000, 0},
          Case{0.011, 0.019, 0.002, 0.010, 0.020, 3}}) {
        const Ticks ticks = round_ticks(one.low, one.high, 6);
        EXPECT_DOUBLE_EQ(ticks.step, one.step) << one.low << " " << one.high;
        EXPECT_NEAR(ticks.values.front(), one.first, 1e-12);
        EXPECT_NEAR(ticks.values.back(), one.last, 1e-12);
        EXPECT_EQ(ticks.num_decimals, one.num_decimals);
    }
}

TEST(RoundTicks, WidenAnEmptyOrInfiniteRange) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const auto& [low, high] : {std::pair(5.0, 5.0), std::pair(0.0, 0.0),
                                    std::pair(infinity, -infinity), std::pair(-1e9, -1e9)}) {
        const Ticks ticks = round_ticks(low, high, 6);
        EXPECT_GE(ticks.values.size(), 2u);
        if (std::isfinite(low)) {
            EXPECT_LE(ticks.values.front(), low);
            EXPECT_GE(ticks.values.back(), low);
        }
    }
}

TEST(LineChart, PutsPointsWhereTheTicksSay) {
    const LineChart chart{"t", "step", "loss", {{"a", {0, 1, 2}, {4, 2, 0}}}, {{"half", 2}}};
    const std::string svg = line_chart_svg(chart);
    const std::regex line("points=\"([0-9.]+),([0-9.]+) ([0-9.]+),([0-9.]+) ([0-9.]+),([0-9.]+)\"");
    std::smatch match;
    ASSERT_TRUE(std::regex_search(svg, match, line)) << svg;
    EXPECT_EQ(std::stod(match[2]), tick_y(svg, "4"));
    EXPECT_EQ(std::stod(match[4]), tick_y(svg, "2"));
    EXPECT_EQ(std::stod(match[6]), tick_y(svg, "0"));
    EXPECT_LT(std::stod(match[2]), std::stod(match[6]));  // up is smaller in SVG
    EXPECT_NEAR(std::stod(match[3]) - std::stod(match[1]),
                std::stod(match[5]) - std::stod(match[3]), 0.11);
    const std::regex reference("class=\"reference\"[^>]* y1=\"([0-9.]+)\"");
    ASSERT_TRUE(std::regex_search(svg, match, reference));
    EXPECT_EQ(std::stod(match[1]), tick_y(svg, "2"));
    EXPECT_TRUE(is_balanced(svg));
    EXPECT_EQ(svg, line_chart_svg(chart));
}

TEST(LineChart, BreaksALineWhereAValueIsNotFinite) {
    const double nan = std::nan("");
    const LineChart chart{"", "", "", {{"a", {0, 1, 2, 3, 4}, {1, 2, nan, 3, 4}}}, {}};
    const std::string svg = line_chart_svg(chart);
    EXPECT_EQ(count(svg, "<polyline"), 2);
    EXPECT_EQ(count(svg, "nan"), 0);
    EXPECT_EQ(count(svg, "inf"), 0);
}

TEST(LineChart, NamesEverythingAndEscapesIt) {
    LineChart chart{"a < b & \"c\"", "x>", "y\x01", {}, {{"r&d", 1}}};
    for (int i = 0; i < 9; ++i) {
        chart.series.push_back({"series " + std::to_string(i), {0, 1}, {0.0, 1.0 * i}});
    }
    const std::string svg = line_chart_svg(chart);
    EXPECT_TRUE(is_balanced(svg));
    EXPECT_EQ(count(svg, "a &lt; b &amp; &quot;c&quot;"), 2);
    EXPECT_EQ(count(svg, ">x&gt;<"), 1);
    EXPECT_EQ(count(svg, ">y?<"), 1);
    EXPECT_EQ(count(svg, ">r&amp;d<"), 1);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(count(svg, ">series " + std::to_string(i) + "<"), 1);
    EXPECT_EQ(count(svg, "prefers-color-scheme: dark"), 1);
}

TEST(LineChart, DrawsNothingAndOnePoint) {
    EXPECT_TRUE(is_balanced(line_chart_svg({})));
    const std::string svg = line_chart_svg({"", "", "", {{"a", {3}, {7}}}, {}});
    EXPECT_EQ(count(svg, "<polyline"), 1);
    EXPECT_EQ(count(svg, "nan"), 0);
    EXPECT_THROW(line_chart_svg({"", "", "", {{"a", {3}, {}}}, {}}), std::invalid_argument);
}

TEST(BarChart, BarsStandOnZeroAndReachTheirValue) {
    const std::string svg = bar_chart_svg({"t", "expert", "tokens", {4, 0, 2}, {{"mean", 2}}});
    EXPECT_TRUE(is_balanced(svg));
    const std::regex bar("class=\"bar\"[^>]* y=\"([0-9.]+)\"[^>]* height=\"([0-9.]+)\"");
    std::vector<std::pair<double, double>> bars;
    for (std::sregex_iterator it(svg.begin(), svg.end(), bar), end; it != end; ++it) {
        bars.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
    }
    ASSERT_EQ(bars.size(), 3u);
    EXPECT_EQ(bars[0].first, tick_y(svg, "4"));
    EXPECT_EQ(bars[1].second, 0.0);
    EXPECT_EQ(bars[2].first, tick_y(svg, "2"));
    for (const auto& [top, height] : bars) EXPECT_NEAR(top + height, tick_y(svg, "0"), 0.11);
    // Ticks at whole experts only.
    EXPECT_EQ(count(svg, ">0.5<"), 0);
    EXPECT_THROW(bar_chart_svg({"", "", "", {-1}, {}}), std::invalid_argument);
    EXPECT_THROW(bar_chart_svg({"", "", "", {std::nan("")}, {}}), std::invalid_argument);
}

}  // namespace
}  // namespace mok::io
