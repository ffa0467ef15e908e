// Runs `sh -c COMMAND`, for data that programs such as ssh, curl or aws bring. So this project needs no network code:
// such programs handle protocols, certificates and credentials.
#pragma once

#include "core/text.h"

#include <functional>

namespace rg::data {

/// Runs a command to its end. Its standard input is empty. `poll` gets the numbers of lines on standard
/// output and standard error so far, about 50 times per second and at the end; the lines themselves are dropped. Throws
/// Error, with the last line of standard error, if the command ends by a signal or with a status other than 0. By
/// default, only the last command of a pipeline gives the exit status. Also throws Error if the command cannot be
/// started or writes more than 64 MiB to standard error. Throws Stopped after a stop request. If the command has not
/// ended then, or if `poll` throws, kills it and its descendants. A background job whose shell has ended survives until
/// it writes to one of its outputs, which are closed then.
void run_command(const std::string& command, const std::function<void(int64_t lines, int64_t errors)>& poll = {});

/// Returns the first 300 bytes of a text from outside through printable(), for messages, and "..." if it has more.
std::string excerpt(std::string_view text);


} // namespace rg::data
