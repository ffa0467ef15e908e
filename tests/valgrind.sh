#!/bin/sh
# Two training steps and an evaluation under valgrind: no read of what was never written, none beyond an allocation, no
# allocation that is lost. Compiled code of all kinds is run as it is built, unlike with sanitizers.
#
# Argument: train_cifar. With the instruction set that valgrind knows best.
set -eu
if ! command -v valgrind >/dev/null 2>&1; then
    echo "skipped: no valgrind"
    exit 77
fi
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
printf '{\n MPI\n Memcheck:Leak\n ...\n fun:PMPI_Init_thread\n}\n' >suppressions # it keeps some for itself
RG_ISA=avx2 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    --suppressions=suppressions "$program" --steps 2 --width 4 --depth 1 --batch-size 8 --threads 2
