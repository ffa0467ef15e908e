// What another program writes: `sh -c COMMAND` with its standard output read to the end.
//
// This is how data come from anywhere without a line of network code here: curl, aws, s5cmd, ssh know protocols,
// certificates and credentials better than we could. What a program has written counts only if it ended with status 0,
// since a connection that broke looks like a short file. The exit status of `a | b` is that of b alone, as in any
// shell: that is one of the reasons why the readers check that what they get is whole.
#pragma once

#include "core/base.h"

#include <limits>

namespace rg::data {

constexpr double kNoTimeLimit = std::numeric_limits<double>::infinity();

/// The command ended, but not as it should.
struct PipeError : Error {
    PipeError(const std::string& text, int status_, std::string output_)
        : Error(text), status(status_), output(std::move(output_)) {}
    int status;         // of the shell; 127: it found no such program
    std::string output; // how what it has written begins: servers say there why they refuse
};

/// All that the command writes to standard output; its standard input is empty. Errors: it cannot be started, ends
/// with another status than 0 or by a signal (PipeError, with the last line of its standard error), writes more than
/// `limit` bytes, or more than 64 MiB to standard error, neither writes nor ends for `silence_s` seconds, or does not
/// end within `total_s` seconds. Throws Stopped when the process is asked to stop.
/// After an error the command is ended, with its descendants and all processes that hold its output open. Only a job in
/// the background that has redirected both outputs lives on, if the shell that started it has ended.
std::string read_pipe(const std::string& command, size_t limit, double silence_s, double total_s = kNoTimeLimit);

/// Text of others in a message of ours: printable(), and not too long.
std::string excerpt(std::string_view text);

/// The text as one word of a shell command.
std::string shell_word(const std::string& text);

} // namespace rg::data
