#pragma once

#include <cctype>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

namespace mok::layering {

// C++ text without its comments, line for line. `code` keeps string literals, `bare` has them
// empty.
struct Stripped {
    std::string code;
    std::string bare;
};

// The end of the literal that starts at `i` with a quote; a raw string ends at )DELIMITER".
inline size_t literal_end(const std::string& text, size_t i) {
    if (text[i] == '"' && i > 0 && text[i - 1] == 'R') {
        const size_t open = text.find('(', i);
        if (open == std::string::npos) return text.size();
        const std::string close = ")" + text.substr(i + 1, open - i - 1) + "\"";
        const size_t end = text.find(close, open);
        return end == std::string::npos ? text.size() : end + close.size();
    }
    size_t end = i + 1;
    while (end < text.size() && text[end] != text[i] && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
    }
    return std::min(end + 1, text.size());
}

inline Stripped strip(const std::string& text) {
    Stripped out;
    const auto put = [&out](char c) { out.code += c, out.bare += c; };
    const auto keep_lines = [&put](const std::string& part) {
        for (char c : part) {
            if (c == '\n') put(c);
        }
    };
    size_t i = 0;
    while (i < text.size()) {
        const bool is_digit_separator =
            text[i] == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));
        if (text.compare(i, 2, "//") == 0) {
            i = std::min(text.find('\n', i), text.size());
        } else if (text.compare(i, 2, "/*") == 0) {
            const size_t end = text.find("*/", i + 2);
            const size_t next = end == std::string::npos ? text.size() : end + 2;
            put(' ');
            keep_lines(text.substr(i, next - i));
            i = next;
        } else if ((text[i] == '"' || text[i] == '\'') && !is_digit_separator) {
            const size_t end = literal_end(text, i);
            const std::string literal = text.substr(i, end - i);
            out.code += literal;
            out.bare += "\"\"";
            for (char c : literal) {
                if (c == '\n') out.bare += c;
            }
            i = end;
        } else {
            put(text[i++]);
        }
    }
    return out;
}

struct Include {
    int line;
    std::string name;  // as written between the quotes or brackets
    bool is_quoted;
};

inline std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines(1);
    for (char c : text) {
        if (c == '\n') {
            lines.emplace_back();
        } else {
            lines.back() += c;
        }
    }
    return lines;
}

inline std::vector<Include> includes_of(const Stripped& stripped) {
    static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
    std::vector<Include> includes;
    int line = 0;
    for (const std::string& text : lines_of(stripped.code)) {
        ++line;
        std::smatch match;
        if (std::regex_search(text, match, kInclude)) {
            includes.push_back({line, match[2], match[1] == "\""});
        }
    }
    return includes;
}

// The lines that hold inline assembly.
inline std::vector<int> asm_lines_of(const Stripped& stripped) {
    static const std::regex kAsm(R"(\b(asm|__asm|__asm__)\b)");
    std::vector<int> found;
    int line = 0;
    for (const std::string& text : lines_of(stripped.bare)) {
        ++line;
        if (std::regex_search(text, kAsm)) found.push_back(line);
    }
    return found;
}

}  // namespace mok::layering
