// Parses, checks and lists the command-line options of a program, from one declaration each.
//
// A declaration binds an option to a variable of the program. The variable's value at the declaration is the default.
// Options have long names only (except -h): `--name value`, `--name=value`, and for a bool `--name` or `--no-name`. If
// an option is given twice, the last value counts, but a list collects all values. There are no abbreviations and no
// option files.
#pragma once

#include "core/json.h"

#include <deque>
#include <functional>
#include <limits>
#include <span>

namespace rg {

class Options {
public:
    /// Points to the variable that an option sets. The variable's type decides which values are valid.
    using Variable = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*>;

    /// One declared option. Its functions refine the declaration and return *this, for chaining.
    class Option {
    public:
        /// Restricts a number to [lowest, highest].
        Option& range(double lowest, double highest) { return lowest_ = lowest, highest_ = highest, *this; }
        Option& at_least(double lowest) { return range(lowest, std::numeric_limits<double>::infinity()); }
        /// Restricts a text to these values.
        Option& one_of(std::vector<std::string> names) { return choices_ = std::move(names), *this; }
        /// Sets the placeholder for the value in --help, for example "DIR".
        Option& metavar(std::string name) { return metavar_ = std::move(name), *this; }
        /// Marks one of the about ten options that matter most. If a program has such options, --help shows only these,
        /// and --help-all shows all options.
        Option& basic() { return basic_ = true, *this; }
        /// Marks an option that a resumed run must leave as it was, such as one of the network or of the mini-batches.
        Option& fixed() { return fixed_ = true, *this; }
        /// Marks an option whose value may differ between ranks, since their machines may differ.
        Option& by_rank() { return by_rank_ = true, *this; }

    private:
        friend class Options;
        std::string name_, text_, group_, metavar_, default_;
        Variable variable_;
        // For an enum: get_choice_() returns the name of the current value, and set_choice_(i) sets the value that is
        // named choices_[i]. Then variable_ is unused.
        std::function<std::string()> get_choice_;
        std::function<void(size_t)> set_choice_;
        std::vector<std::string> choices_;
        double lowest_ = -std::numeric_limits<double>::infinity(), highest_ = std::numeric_limits<double>::infinity();
        bool given_ = false, basic_ = false, fixed_ = false, by_rank_ = false;

        bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(variable_); }
        bool is_bool() const { return !set_choice_ && std::holds_alternative<bool*>(variable_); }
        std::string get() const;
        Json get_json() const;
        void set(const std::string& value);
        std::string valid_values() const; // for errors and --help, such as "an integer of at least 1"
    };

    /// `program` is the program's name, with its command if it has one: "train_cifar sweep". `summary` describes the
    /// program in one line, for --help.
    Options(std::string program, std::string summary);
    Options(const Options&) = delete;
    Options& operator=(const Options&) = delete;

    const std::string& program() const { return program_; }

    /// Adds one example to --help for each text in `arguments`. It consists of `launcher`, such as "mpiexec -n 4 "
    /// (with a space at its end; none in a build without MPI), the path of this program, its command if it has one, and
    /// the text.
    void add_examples(const std::vector<std::string>& arguments, const std::string& launcher = "");

    /// Lists the program's commands in --help, each with a line, and in the error for a first argument without dashes.
    void commands(const std::vector<std::pair<std::string, std::string>>& list) { commands_ = list; }

    /// Sets the heading in --help for the options that are added from now on.
    void group(const std::string& title) { group_ = title; }

    /// Declares --name. `text` is one phrase for --help, which prints the range and the default after it. If the target
    /// is a list, each --name VALUE appends one value.
    Option& add(const std::string& name, Variable target, const std::string& text);
    /// Marks the options that are added from now on as Option::fixed(), or not.
    void fix(bool fixed) { fixed_ = fixed; }
    /// Declares an enum with its names, for example {{"zero", Fill::zero}, {"reflect", Fill::reflect}}.
    template <class E>
    Option& add(const std::string& name, E* value, const std::vector<std::pair<std::string, E>>& names,
                const std::string& text);

    /// Accepts between `least` and `most` arguments without a name, and stores them in order. Without this call such an
    /// argument is an error.
    void positional(const std::string& metavar, std::vector<std::string>* values, const std::string& text,
                    size_t least = 0, size_t most = std::numeric_limits<size_t>::max());

    /// Collects unknown options and their values unchanged, to pass them to another program. `text` explains this in
    /// --help. The values of an unknown --NAME are all arguments up to the next one that begins with "--"; --NAME=VALUE
    /// has only that value. Without this call an unknown option is an error.
    void pass_on(std::vector<std::string>* arguments, const std::string& text) {
        passed_on_ = arguments;
        passed_on_text_ = text;
    }

    /// Parses argv[1...]. Returns false, without setting an option, if --help, -h, --help-all or --version is among
    /// them: the caller then returns print_help_or_version(). Throws Error for an unknown name (and suggests a similar
    /// one, or the option that means the same as an option of other programs), a missing or bad value, or too few or
    /// too many arguments without a name.
    bool parse(int argc, const char* const* argv);
    /// Parses a list of arguments that does not begin with the program's name. Returns and throws like the other
    /// parse().
    bool parse(const std::vector<std::string>& args);
    /// Returns the help, or for --version one line: the program's name, the version of ringgrad and its build
    /// (core/version.h).
    std::string help_or_version() const { return version_asked_ ? version() : help(all_asked_); }
    /// Prints help_or_version() if `prints`. Returns 0, the exit code.
    int print_help_or_version(bool prints = true) const;
    /// Returns the help. It has all options if `all` is true or if no option is basic, otherwise only the basic ones.
    std::string help(bool all = true) const;

    /// Returns true if the command line set the option. Use it for defaults that depend on other options.
    bool was_given(const std::string& name) const;
    /// Return whether the option, which must exist, is marked as Option::fixed() or Option::by_rank().
    bool is_fixed(const std::string& name) const;
    bool is_by_rank(const std::string& name) const;
    /// Returns true if the value of the option is the path of a file or folder, as its placeholder in --help says.
    bool is_path(const std::string& name) const;
    /// Sets an option from text. Does not change was_given(). For example, a resumed run sets its options to the
    /// values() in the checkpoint. Throws Error for an unknown name or a bad value.
    void set(const std::string& name, const std::string& value);
    /// Returns all options with their current values as texts, in order of declaration. set() restores a value from its
    /// text. That of a list has all its values, joined by spaces, so they must not contain spaces.
    std::vector<std::pair<std::string, std::string>> values() const;
    /// Returns the options as a JSON object, with numbers and bools as such, and all else as texts like in values().
    Json to_json() const;

private:
    Option& declare(const std::string& name, const std::string& text);
    Option* find(const std::string& name);
    const Option* find(const std::string& name) const { return const_cast<Options*>(this)->find(name); }
    const Option& declared(const std::string& name) const; // throws Error if there is no such option
    [[noreturn]] void fail_unknown(const std::string& argument) const;
    /// Parses the option at args[0] and its value. Returns the number of elements of `args` that it has parsed.
    size_t parse_option(std::span<const std::string> args);
    std::string version() const;
    static void print_option(std::string& out, const Option& option);

    std::string program_, summary_, group_ = "Options";
    std::deque<Option> options_; // a deque: references to options stay valid
    std::string positional_metavar_, positional_text_, passed_on_text_;
    std::vector<std::string> examples_;
    std::vector<std::pair<std::string, std::string>> commands_;
    std::vector<std::string>* positional_ = nullptr;
    std::vector<std::string>* passed_on_ = nullptr;
    size_t positional_least_ = 0, positional_most_ = 0;
    bool version_asked_ = false, all_asked_ = false, fixed_ = false;
};

template <class E>
Options::Option& Options::add(const std::string& name, E* value, const std::vector<std::pair<std::string, E>>& names,
                              const std::string& text) {
    Option& option = declare(name, text);
    for (const auto& n : names) option.choices_.push_back(n.first);
    option.get_choice_ = [value, names] {
        for (const auto& n : names)
            if (n.second == *value) return n.first;
        return std::string("?");
    };
    option.set_choice_ = [value, names](size_t i) { *value = names[i].second; };
    option.default_ = option.get();
    return option;
}

/// Splits an option's value at its commas. Returns no parts if the value is empty. Throws Error if a part is empty.
std::vector<std::string> list_of(std::string_view option, const std::string& value);

/// Returns the result of `body`. If `body` throws Error, throws an Error whose text begins with the option.
template <class Body>
auto for_option(std::string_view option, const Body& body) {
    try {
        return body();
    } catch (const Error& error) {
        fail(option, ": ", error.what());
    }
}

/// Prepares a process for errors of files. Call this first in main(). Opens /dev/null for each closed standard stream:
/// otherwise a file that the program opens would get the descriptor of that stream, and the text that is meant for the
/// stream would go into the file. Ignores SIGXFSZ, so that a write beyond the limit of file sizes (ulimit -f) returns
/// an error instead of killing the process.
void prepare_process();

/// Returns the name or path with which this process was started, such as build/train_cifar. Returns an empty text
/// without /proc.
std::string invocation_name();

/// Flushes standard output. Throws Error if a part of it could not be written, for example because the disk is full.
/// Call this at the end of a program that has otherwise succeeded.
void finish_output();

/// Calls prepare_process() and `body`, and if `body` returns 0, finish_output(). Returns the result of `body`.
/// Turns an exception into one line on standard error ("error: ...") and returns 1. For the main() of a program without
/// ranks.
int run_main(int argc, char** argv, int (*body)(int argc, const char* const* argv));

} // namespace rg
