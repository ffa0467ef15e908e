// Fuzzes parse_trials and trial_grid: an accepted table survives a write and a read, and no text makes more trials than
// the limit.
#include "models/sweep/trial_table.h"
#include "tests/fuzz/fuzz.h"

namespace rg::fuzz {
namespace {

std::string quoted(const std::string& field) {
    std::string out = "\"";
    for (const char c : field) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
}

/// A table with a column for each setting of one trial.
std::string table_of(const TrialSettings& trial) {
    std::string names, values;
    for (const auto& [name, value] : trial) {
        names += (names.empty() ? "" : ",") + quoted(name);
        values += (values.empty() ? "" : ",") + quoted(value);
    }
    return names + "\n" + values + "\n";
}

} // namespace

void fuzz(Input input) {
    if (input.byte() % 8 == 0) { // rarely, since grids are large
        std::vector<std::string> options(1);
        int digits = 0;
        for (const uint8_t byte : input.bytes(64)) {
            const char c = char(byte);
            digits = c >= '0' && c <= '9' ? digits + 1 : 0;
            if ((digits > 1 && digits < 7) || options.size() > 3) return; // large valid grids take long
            if (c == '\n')
                options.emplace_back();
            else
                options.back() += c;
        }
        if (const auto trials = accepted([&] { return trial_grid(options); }))
            require(!trials->empty() && trials->size() <= kMaxTrials && trials->front().size() == options.size(),
                    "grid");
        return;
    }
    const auto trials = accepted([&, text = input.text()] { return parse_trials(text, "fuzz"); });
    if (!trials) return;
    require(!trials->empty() && trials->size() <= kMaxTrials, "number of trials");
    for (const TrialSettings& trial : *trials) {
        for (const auto& [name, value] : trial) require(name.size() <= kMaxOptionName && !value.empty(), "settings");
        if (!trial.empty())
            require(parse_trials(table_of(trial), "again") == std::vector<TrialSettings>{trial}, "written and read");
        require(arguments_of(trial).size() == trial.size(), "an argument per setting");
    }
}

} // namespace rg::fuzz
