#!/bin/sh
# Compiles every header by itself: one that leans on what its includer happened to include does not pass.
#
# Arguments: the top folder, then the compiler command with its flags. Several headers are compiled at a time. What is
# the first include of a .cpp that every build has was compiled by itself there. Those that are made once per
# instruction set are checked as the portable one.
set -eu
cd "$1"
shift

folders='core gpu data par models tests'
built=$(find $folders -path tests/fuzz -prune -o -name '*.cpp' ! -name no_device.cpp -exec \
    sed -n '/^#include/{s/#include "\(.*\)"$/\1/p;q}' '{}' ';')
find $folders -name '*.h' -o -name '*.cuh' | sort | grep -vxF "$built" | xargs -P "$(nproc)" -I '{}' sh -c '
    header=$1
    shift
    echo "#include \"$header\"" | "$@" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -DRG_ISA=portable -I. -x c++ - ||
        { echo "$header does not compile by itself"; exit 1; }' sh '{}' "$@"
