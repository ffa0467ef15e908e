#!/bin/sh
# Runs two training steps and an evaluation under valgrind, which detects reads of uninitialised memory, reads out of
# bounds and leaks. Unlike with sanitizers, the code runs as it is in a release build.
#
# Argument: train_cifar. Valgrind supports AVX2, but not AVX-512.
set -eu
if ! command -v valgrind >/dev/null 2>&1; then
    echo "skipped: no valgrind"
    exit 77
fi
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
printf '{\n MPI\n Memcheck:Leak\n ...\n fun:PMPI_Init_thread\n}\n' >suppressions # MPI leaks some memory
RG_ISA=avx2 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    --suppressions=suppressions "$program" --steps 2 --width 4 --depth 1 --batch-size 8 --threads 2
