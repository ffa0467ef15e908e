#!/bin/sh
# Compiles every header by itself, so that a header that lacks an include fails.
#
# Arguments: the top folder, then the compiler command with its flags, and with -I for the headers of examples. Compiles
# several headers at a time. Skips headers that are the first include of a .cpp of every build, since that has compiled
# them.
# Headers that are compiled once per instruction set are checked for the portable one. Their long vectors are only passed
# within a file, so that the note about the ABI (-Wpsabi) does not apply.
set -eu
cd "$1"
shift

folders='core gpu data par models tests'
built=$(find $folders -path tests/fuzz -prune -o -name '*.cpp' ! -name no_device.cpp -exec \
    sed -n '/^#include/{s/#include "\(ringgrad\/\)\{0,1\}\(.*\)"$/\2/p;q}' '{}' ';')
find $folders -name '*.h' -o -name '*.cuh' | sort | grep -vxF "$built" | xargs -P "$(nproc)" -I '{}' sh -c '
    header=$1
    shift
    echo "#include \"$header\"" | "$@" -std=c++20 -Wall -Wextra -Werror -Wno-psabi -fsyntax-only -DRG_ISA=portable -I. -x c++ - ||
        { echo "$header: expected to compile by itself, got errors; add the missing includes"; exit 1; }' sh '{}' "$@"
