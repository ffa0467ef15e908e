// Runs `sh -c COMMAND` and reads its standard output to the end.
//
// This lets data come from anywhere without network code in this project: curl, aws, s5cmd and ssh handle protocols,
// certificates and credentials. The output counts only if the command ends with status 0, because a broken connection
// looks like a short file. By default, the exit status of `a | b` is that of b alone. This is one reason why the
// readers check that their input is complete.
#pragma once

#include "ringgrad/core/base.h"

#include <limits>

namespace rg::data {

constexpr double kNoTimeLimit = std::numeric_limits<double>::infinity();

/// Thrown if the command ends with a status other than 0, or is ended by a signal.
struct PipeError : Error {
    PipeError(const std::string& text, int status_, std::string output_)
        : Error(text), status(status_), output(std::move(output_)) {}
    int status;         // exit status of the shell (127: program not found), or 128 + the signal that ended the shell
    std::string output; // beginning of standard output, which may say why a server refuses
};

/// Returns everything that the command writes to standard output. Its standard input is empty. Throws PipeError, with
/// the last line of standard error, if the command ends by a signal or with a status other than 0. Throws Error if it
/// cannot be started, writes more than `limit` bytes, or writes more than 64 MiB to standard error. Also throws Error
/// if it neither writes nor ends for `silence_s` seconds, or does not end within `total_s` seconds. Throws Stopped
/// after a stop request. If the command has not ended then, kills it, its descendants, and the processes that hold its
/// output open. A background job can survive this if it has redirected both of its outputs and its shell has ended.
std::string read_pipe(const std::string& command, size_t limit, double silence_s, double total_s = kNoTimeLimit);

/// Returns the first 300 bytes of a text from outside through printable(), for messages, and "..." if it has more.
std::string excerpt(std::string_view text);

/// Returns the text as one word of a shell command, in quotes if necessary.
std::string shell_word(const std::string& text);

} // namespace rg::data
