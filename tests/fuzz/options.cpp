// Fuzzes Options::parse with an argument per line of the input, for options of every kind. Accepted values are in
// range, and set() takes the result of values().
#include "core/options.h"
#include "tests/fuzz/fuzz.h"

#include <cmath>

namespace rg::fuzz {
namespace {

enum class Fill { zero, reflect };

struct Program {
    int64_t epochs = 3, seed = 0;
    double rate = 0.1, decay = 0;
    bool nesterov = true;
    std::string data, device = "auto";
    Fill fill = Fill::zero;
    std::vector<std::string> files, others;
    Options options{"fuzz", "reads options"};

    explicit Program(bool pass_on) {
        options.add("epochs", &epochs, "passes").range(1, 1e6);
        options.add("seed", &seed, "of everything");
        options.add("lr", &rate, "rate").at_least(0);
        options.add("decay", &decay, "of weights");
        options.add("nesterov", &nesterov, "momentum");
        options.add("data", &data, "folder").metavar("DIR");
        options.add("device", &device, "where").one_of({"cpu", "auto"});
        options.add("fill", &fill, {{"zero", Fill::zero}, {"reflect", Fill::reflect}}, "edges");
        options.positional("FILE", &files, "files", 1);
        if (pass_on) options.pass_on(&others, "for others");
    }
};

} // namespace

void fuzz(Input input) {
    const bool pass_on = input.byte() & 1;
    std::vector<std::string> arguments(1);
    while (!input.empty())
        if (const char c = char(input.byte()); c == '\n')
            arguments.emplace_back();
        else
            arguments.back() += c;

    Program program(pass_on);
    if (!accepted([&] { return program.options.parse(arguments); })) return;
    require(program.epochs >= 1 && program.epochs <= 1000000, "ranges of integers");
    require(program.rate >= 0 && std::isfinite(program.rate) && std::isfinite(program.decay), "ranges of numbers");
    require(program.device == "cpu" || program.device == "auto", "texts by name");

    Program again(pass_on);
    for (const auto& [name, value] : program.options.values()) again.options.set(name, value);
    require(again.options.values() == program.options.values(), "values() and set()");
    require(again.options.to_json() == program.options.to_json(), "to_json()");
    Json::parse(program.options.to_json().dump(), "config.json");
}

} // namespace rg::fuzz
