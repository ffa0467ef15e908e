// Command-line options of a program: declared once with variable, text and range; parsed, checked, listed, echoed.
//
// An option is bound to the program's own variable, whose value at declaration is the default, so ordinary code reads
// `epochs` and nothing is looked up by name. Long names only: `--name value`, `--name=value`, and for a bool `--name`
// or `--no-name`. When an option comes twice the last one counts, except where it is a list. No short names, no
// abbreviations, no option files.
#pragma once

#include "core/json.h"

#include <deque>
#include <functional>
#include <limits>
#include <span>

namespace rg {

class Options {
public:
    /// One declared option; the functions below refine it and can be chained.
    class Entry {
    public:
        /// For numbers: values outside [lowest, highest] are refused.
        Entry& range(double lowest, double highest);
        Entry& at_least(double lowest) { return range(lowest, std::numeric_limits<double>::infinity()); }
        /// For texts: the values that are taken.
        Entry& one_of(std::vector<std::string> names);
        /// What --help shows in place of the value, e.g. "DIR".
        Entry& metavar(std::string name);

    private:
        friend class Options;
        std::string name_, text_, group_, metavar_, default_;
        std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*> target_;
        // For an enum: its value as text and from text (one of choices_). Then target_ is unused.
        std::function<std::string()> get_choice_;
        std::function<void(size_t)> set_choice_;
        std::vector<std::string> choices_;
        double lowest_ = -std::numeric_limits<double>::infinity(), highest_ = std::numeric_limits<double>::infinity();
        bool given_ = false;

        bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(target_); }
        bool is_bool() const { return !set_choice_ && std::holds_alternative<bool*>(target_); }
        std::string get() const;
        Json get_json() const;
        void set(const std::string& value);
        std::string expected() const;
    };

    /// `summary`: one line that says what the program does.
    Options(std::string program, std::string summary);
    Options(const Options&) = delete;
    Options& operator=(const Options&) = delete;

    /// The options that are added from here on stand under this heading in --help.
    void group(const std::string& title) { group_ = title; }

    /// Declares --name. `text` is one phrase for --help, which adds default and range by itself.
    Entry& add(const std::string& name, int64_t* value, const std::string& text);
    Entry& add(const std::string& name, double* value, const std::string& text);
    Entry& add(const std::string& name, bool* value, const std::string& text);
    Entry& add(const std::string& name, std::string* value, const std::string& text);
    /// May be given several times, and collects the values.
    Entry& add(const std::string& name, std::vector<std::string>* values, const std::string& text);
    /// An enum by names, e.g. {{"zero", Fill::zero}, {"reflect", Fill::reflect}}.
    template <class E>
    Entry& add(const std::string& name, E* value, const std::vector<std::pair<std::string, E>>& names,
               const std::string& text);

    /// Arguments without a name, in order, `least` to `most` of them. Without this any such argument is an error.
    void positional(const std::string& metavar, std::vector<std::string>* values, const std::string& text,
                    size_t least = 0, size_t most = std::numeric_limits<size_t>::max());

    /// Unknown options, with the values after them, are not errors but collected here, as they are: for another
    /// program. `text` says so in --help.
    void pass_on(std::vector<std::string>* arguments, const std::string& text) {
        passed_on_ = arguments;
        passed_on_text_ = text;
    }

    /// Reads argv[1...]. False when --help was asked for: the caller prints help() and exits 0. Error: an unknown name
    /// (with the nearest known one), a missing or bad value (with what was expected), a surplus argument.
    bool parse(int argc, const char* const* argv);
    /// The same for arguments without the program's name.
    bool parse(const std::vector<std::string>& args);
    std::string help() const;

    /// Whether the command line set it: for defaults that depend on other options.
    bool given(const std::string& name) const;
    /// Sets it from text without marking it as given (e.g. from the values() of the run that is resumed).
    void set(const std::string& name, const std::string& value);
    /// All options and their values now, in order of declaration; set() takes these texts and gives the same values.
    std::vector<std::pair<std::string, std::string>> values() const;
    /// The same as a JSON object, with numbers as numbers.
    Json to_json() const;

private:
    Entry& declare(const std::string& name, const std::string& text);
    Entry* find(const std::string& name);
    const Entry* find(const std::string& name) const { return const_cast<Options*>(this)->find(name); }
    [[noreturn]] void unknown(const std::string& argument) const;
    /// Takes the option at args[i] and its value; returns how many arguments it used.
    size_t take(std::span<const std::string> args);

    std::string program_, summary_, group_ = "Options";
    std::deque<Entry> entries_; // a deque: references to entries stay valid
    std::string positional_metavar_, positional_text_, passed_on_text_;
    std::vector<std::string>* positional_ = nullptr;
    std::vector<std::string>* passed_on_ = nullptr;
    size_t positional_least_ = 0, positional_most_ = 0;
};

template <class E>
Options::Entry& Options::add(const std::string& name, E* value, const std::vector<std::pair<std::string, E>>& names,
                             const std::string& text) {
    Entry& entry = declare(name, text);
    for (const auto& n : names) entry.choices_.push_back(n.first);
    entry.get_choice_ = [value, names] {
        for (const auto& n : names)
            if (n.second == *value) return n.first;
        return std::string("?");
    };
    entry.set_choice_ = [value, names](size_t i) { *value = names[i].second; };
    entry.default_ = entry.get();
    return entry;
}

/// Opens /dev/null in the place of standard streams that are closed: a file that the program opens would get their
/// number, and its text. Call it first in main().
void open_standard_streams();

/// Throws if part of what the program has printed did not reach standard output, for example because the disk is full.
/// Call it at the end of a program that has succeeded otherwise.
void finish_output();

/// The body of a program's main() where there are no ranks: runs `body` between the two calls above; an exception
/// becomes one line on standard error ("error: ...") and exit code 1.
int run_main(int argc, char** argv, int (*body)(int argc, const char* const* argv));

} // namespace rg
