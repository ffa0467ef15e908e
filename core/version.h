// The version of ringgrad, and the options that it was built with.
#pragma once

namespace rg {

/// The version of ringgrad, from meson.build, for example "0.1.0".
extern const char* const kVersion;

/// Version and build on one line, for --version, for example "0.1.0 (1a2b3c4d5e6f), instruction sets amx, avx2, avx512,
/// avx512bf16, portable; MPI: mpich 4.0.2; CUDA: no". The text in parentheses is the git commit, followed by "-dirty"
/// if files differ from the commit, or "no git" in a build outside of git.
extern const char* const kBuild;

/// The MPI library of this build, for example "mpich 4.0.2", or "no".
extern const char* const kMpi;

} // namespace rg
