// Tests options: both spellings, errors, --help, and values that can be read back.
#include "core/cpu/isa.h"
#include "core/options.h"
#include "core/version.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <doctest/doctest.h>

namespace rg {
namespace {

enum class Fill { zero, reflect };

/// Declares options as a program does.
struct Program {
    int64_t epochs = 50, seed = 1;
    double lr = 0.1, decay = 1e-10;
    bool shuffle = true, resume = false;
    std::string data, device = "auto";
    Fill fill = Fill::zero;
    std::vector<std::string> files;
    Options o{"train", "trains a network"};

    Program() {
        o.group("Training");
        o.add("epochs", &epochs, "passes over the training set").range(0, 100000);
        o.add("lr", &lr, "learning rate").at_least(0);
        o.add("weight-decay", &decay,
              "factor of the L2 penalty on all parameters, batch norm's included, as in the "
              "update rule of SGD with momentum");
        o.add("seed", &seed, "of everything random").fixed();
        o.add("shuffle", &shuffle, "a new order of the samples in every epoch");
        o.group("Files");
        o.add("data", &data, "folder of the data set").metavar("DIR").by_rank();
        o.add("device", &device, "where to compute").one_of({"auto", "cpu"});
        o.add("fill", &fill, {{"zero", Fill::zero}, {"reflect", Fill::reflect}}, "what shows at the border");
        o.add("resume", &resume, "go on from the newest checkpoint");
    }

    bool parse(std::vector<const char*> args) {
        args.insert(args.begin(), "train");
        return o.parse(int(args.size()), args.data());
    }
};

std::string error_with(const std::vector<const char*>& args) {
    Program p;
    return error_of([&] { p.parse(args); });
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("options: keep defaults, and take both spellings") {
        Program p;
        CHECK(p.parse({}));
        CHECK(p.epochs == 50);
        CHECK_FALSE(p.o.was_given("epochs"));
        CHECK(p.parse({"--epochs", "3", "--lr=0.25", "--no-shuffle", "--resume", "--fill", "reflect", "--data=a=b",
                       "--device", "cpu", "--seed", "-9223372036854775808", "--weight-decay", "1e-4"}));
        CHECK(p.epochs == 3);
        CHECK(p.lr == 0.25);
        CHECK(p.decay == 1e-4);
        CHECK_FALSE(p.shuffle);
        CHECK(p.resume);
        CHECK(p.fill == Fill::reflect);
        CHECK(p.data == "a=b");
        CHECK(p.device == "cpu");
        CHECK(p.seed == std::numeric_limits<int64_t>::min());
        CHECK(p.o.was_given("epochs"));
        CHECK(p.o.was_given("shuffle"));
        CHECK((p.o.is_fixed("seed") && !p.o.is_fixed("data")));
        CHECK((p.o.is_by_rank("data") && !p.o.is_by_rank("seed")));
        CHECK_ERROR("--eta is not declared", (void)p.o.is_fixed("eta"));
        CHECK(p.parse({"--epochs", "3", "--epochs=4", "--data="}));
        CHECK(p.epochs == 4);
        CHECK(p.data.empty());
    }

    TEST_CASE("options: suggest the nearest name for an unknown one") {
        const std::pair<std::vector<const char*>, const char*> suggestions[] = {
            {{"--epoch", "3"}, "epochs"},
            {{"--epcohs=3"}, "epochs"},
            {{"--no-shufle"}, "no-shuffle"},
            {{"--WeightDecay", "1"}, "weight-decay"},
            {{"--hepl"}, "help"},
            {{"--versoin"}, "version"},
            {{"--no-epochs"}, "epochs"},
            {{"--hlep-all"}, "help-all"},
            {{"--gpu", "0"}, "device"},
            {{"--acelerator=1"}, "device"}}; // names that other programs have for an option
        for (const auto& [args, meant] : suggestions) {
            const std::string name = args[0];
            CHECK(error_with(args) ==
                  cat("unknown option ", name.substr(0, name.find('=')), "; did you mean --", meant, "?"));
        }
        CHECK(contains(error_with({"--LearnRateDropFactor=1"}), "lists all")); // this program has no such option
        for (const char* const name : {"--eta", "-q", "--quux"})
            CHECK(error_with({name, "1"}) == cat("unknown option ", name, "; train --help-all lists all"));
        for (const char* const name : {"--help", "--version", "--help-all"})
            CHECK(error_with({cat(name, "=1").c_str()}) ==
                  cat("option ", name, ": expected ", name, " alone, got ", name, "=1"));
        CHECK(contains(error_with({"--"}), "unknown option --"));
        CHECK_FALSE(contains(Program().o.help(), "accelerator"));
    }

    TEST_CASE("options: state what was expected for a bad value") {
        const std::string range = "option --epochs: expected an integer from 0 to 100000, got ";
        for (const char* const bad : {"x", "1.5", "-1", "100001", "", " 1"})
            CHECK(error_with({cat("--epochs=", bad).c_str()}) == cat(range, '"', bad, '"'));
        CHECK(contains(error_with({"--seed", "9223372036854775808"}), "expected an integer, got"));
        CHECK(error_with({"--lr", "-0.1"}) == "option --lr: expected a number of at least 0, got \"-0.1\"");
        for (const char* const bad : {"nan", "inf", "0.1x"})
            CHECK(contains(error_with({"--lr", bad}), "expected a number"));
        CHECK(error_with({"--device", "gpu"}) == "option --device: expected one of auto or cpu, got \"gpu\"");
        CHECK(error_with({"--fill", "edge"}) == "option --fill: expected one of zero or reflect, got \"edge\"");
        CHECK(error_with({"--shuffle=no"}) ==
              "option --shuffle: expected --shuffle or --no-shuffle alone, got --shuffle=no");
        CHECK(contains(error_with({"--data"}), "option --data: expected a text after it, got the end"));
        CHECK(contains(error_with({"--data", "--epochs", "3"}), "got --epochs"));
        CHECK(contains(error_with({"stray"}), "unexpected argument \"stray\";"));
        CHECK(contains(error_with({"--epochs", "2", "3"}),
                       "unexpected argument \"3\" after --epochs, which takes one value;"));
        CHECK(contains(error_with({"--shuffle", "yes"}),
                       "unexpected argument \"yes\" after --shuffle, which takes none;"));
        CHECK(contains(error_with({"--epochs=2", "3"}), "unexpected argument \"3\" after --epochs=2;"));
    }

    TEST_CASE("options: take positional arguments if declared") {
        Program p;
        p.o.positional("FILE", &p.files, "what to look at", 1);
        CHECK_ERROR("train: expected at least 1 FILE, got 0", p.parse({"--epochs", "1"}));
        CHECK(p.parse({"a", "--epochs", "2", "b", "-"}));
        CHECK(p.files == std::vector<std::string>{"a", "b", "-"});
        CHECK(p.epochs == 2);
        CHECK(contains(p.o.help(), "Usage: train [options] FILE..."));
        Program one;
        one.o.positional("DIR", &one.files, "where to", 1, 1);
        CHECK(contains(one.o.help(), "Usage: train [options] DIR\n"));
        CHECK_ERROR("train: expected at most 1 DIR, got 2", one.parse({"a", "b"}));
    }

    TEST_CASE("options: print help in groups within the width") {
        Program p;
        CHECK_FALSE(p.parse({"--help", "--nonsense"}));
        const std::string help = p.o.help();
        CHECK(p.o.help_or_version() == help);
        CHECK_FALSE(p.parse({"--epochs", "3", "-h"}));
        CHECK(p.o.help_or_version() == help);
        CHECK(help.starts_with("train: trains a network\n\nUsage: train [options]\n\nTraining\n"));
        CHECK(contains(help, "\n  --epochs N              passes over the training set (an integer from 0 to\n"
                             "                          100000; default 50)\n"));
        CHECK(contains(help, "--weight-decay X        factor of the L2"));
        CHECK(contains(help, "default 1e-10)"));
        CHECK(contains(help, "--[no-]shuffle          a new order of the samples in every epoch (default on)"));
        CHECK(contains(help, "\nFiles\n  --data DIR              folder of the data set\n"));
        CHECK(contains(help, "--device NAME           where to compute (one of auto or cpu; default auto)"));
        size_t begin = 0;
        for (size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1) CHECK(end - begin <= 80);
        p.epochs = 7; // the default is the value at declaration, not at printing
        CHECK(p.o.help() == help);
    }

    TEST_CASE("options: help begins with examples and the basic options, and --help-all has the others") {
        Program p;
        p.o.add_examples({"--epochs 3", "--resume"}, "mpiexec -n 4 ");
        CHECK(p.o.help(false) == p.o.help(true)); // no option is basic
        bool fast = false;
        p.o.group("Speed");
        p.o.add("fast", &fast, "hurry").basic();
        CHECK_FALSE(p.parse({"--help"}));
        const std::string basic = p.o.help_or_version();
        const std::string command = cat(std::string_view(kMpi) == "no" ? "  " : "  mpiexec -n 4 ", invocation_name());
        CHECK(basic.starts_with(
            cat("train: trains a network\n\nExamples\n", command, " --epochs 3\n", command,
                " --resume\n\nUsage: train [options]\n\nMain options\n  --[no-]fast             hurry (default off)\n"
                "\n  -h, --help              print the main options and exit\n"
                "  --help-all              print also the 9 other options\n")));
        CHECK_FALSE(p.parse({"--help-all", "--help"}));
        const std::string all = p.o.help_or_version();
        CHECK(contains(all, "\nTraining\n  --epochs N"));
        CHECK(all.find("--[no-]fast") == all.rfind("--[no-]fast")); // not a second time in its group
        CHECK_FALSE(contains(all, "\nSpeed\n"));
    }

    TEST_CASE("options: examples of a command of a program have the command") {
        Options options("train sweep", "trains networks");
        options.add_examples({"--epochs 3"});
        CHECK(contains(options.help(), cat("  ", invocation_name(), " sweep --epochs 3\n")));
    }

    TEST_CASE("options: --help and the error for another word list the commands") {
        Program p;
        p.o.commands({{"train", "trains"}, {"sweep", "trains often"}, {"help", "helps"}});
        CHECK(contains(p.o.help(), "\nUsage: train [command] [options]\n\nCommands\n  train                   trains\n"
                                   "  sweep                   trains often\n"));
        CHECK(error_of([&] {
                  p.parse({"swep", "--epochs", "3"});
              }) == "train: expected a command (train, sweep or help), got \"swep\"; did you mean sweep?");
        CHECK_ERROR("(train, sweep or help), got \"cats\"; options begin with --", p.parse({"cats"}));
        CHECK_ERROR("unexpected argument \"sweep\" after --epochs", p.parse({"--epochs", "3", "sweep"}));
    }

    TEST_CASE("options: print the version and the build on one line") {
        Program p;
        CHECK_FALSE(p.parse({"--version", "--help"}));
        const std::string line = p.o.help_or_version();
        CHECK(line == cat("train ", kBuild, "\n"));
        CHECK(line.starts_with(cat("train ", kVersion, " (")));
        CHECK(std::count(line.begin(), line.end(), '\n') == 1);
        CHECK(contains(line, cpu::isa().name));
        CHECK(line.find('@') == std::string::npos); // the build has filled in all texts
        CHECK_FALSE(p.parse({"--help", "--version"}));
        CHECK(p.o.help_or_version() == p.o.help());
        CHECK_ERROR("declared twice", p.o.add("version", &p.data, "again"));
    }

    TEST_CASE("options: read back their own values") {
        Program p, q;
        p.parse({"--lr", "0.1234567890123456", "--no-shuffle", "--fill", "reflect", "--data", "x y", "--epochs", "9"});
        for (const auto& [name, value] : p.o.values()) q.o.set(name, value);
        CHECK(q.o.values() == p.o.values());
        CHECK(q.lr == p.lr);
        CHECK(q.fill == Fill::reflect);
        CHECK_FALSE(q.o.was_given("lr"));
        CHECK(p.o.to_json().dump() ==
              "{\"epochs\": 9, \"lr\": 0.1234567890123456, \"weight-decay\": 1e-10, \"seed\": 1, \"shuffle\": false, "
              "\"data\": \"x y\", \"device\": \"auto\", \"fill\": \"reflect\", \"resume\": false}");
        CHECK_FALSE(q.o.is_fixed("lr"));
        q.o.fix(true);
        q.o.add("kernel", &q.lr, "a number");
        CHECK(q.o.is_fixed("kernel"));
        CHECK_ERROR("no such option", q.o.set("gone", "1"));
        CHECK_ERROR("from 0 to 100000", q.o.set("epochs", "-3"));
        CHECK_ERROR("declared twice", q.o.add("lr", &q.lr, "again"));
    }

    TEST_CASE("options: lists with commas, and errors that name the option") {
        CHECK(list_of("--x", "").empty());
        CHECK(list_of("--x", "fc,layer4") == std::vector<std::string>{"fc", "layer4"});
        for (const char* bad : {",", "fc,", "fc,,layer4", ",fc"})
            CHECK(error_of([&] { list_of("--x", bad); }) ==
                  cat("--x: expected a list with commas, got \"", bad, "\" (an empty name)"));
        CHECK(for_option("--x", [] { return 3; }) == 3);
        CHECK(error_of([] { for_option("--x", [] { fail("bad ", 1); }); }) == "--x: bad 1");
    }

    TEST_CASE("options: collect lists, and pass on unknown options unchanged") {
        std::vector<std::string> list, others;
        int64_t own = 1;
        Options options("sweep", "test");
        options.add("sweep", &list, "values");
        options.add("own", &own, "a number");
        options.pass_on(&others, "for another program");
        CHECK(options.parse(
            {"--sweep", "a=1", "--lr", "-0.5", "--own=3", "--no-other", "--sweep=b=2", "--x=y", "--own", "4"}));
        CHECK(list == std::vector<std::string>{"a=1", "b=2"});
        CHECK(others == std::vector<std::string>{"--lr", "-0.5", "--no-other", "--x=y"});
        CHECK(own == 4);
        CHECK(options.values()[0].second == "a=1 b=2");
        options.set("sweep", options.values()[0].second);
        CHECK(list == std::vector<std::string>{"a=1", "b=2"});
        options.set("sweep", "");
        CHECK(list.empty());
        CHECK(contains(options.help(), "for another program"));
        CHECK(error_of([&] { options.parse(std::vector<std::string>{"--own", "x"}); }).starts_with("option --own"));
    }
}

} // namespace rg
