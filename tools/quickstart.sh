#!/bin/sh
# Makes a trained network from a fresh clone: installs what is missing (see deps.sh), builds, and trains
# on the CIFAR-10 sample in the repository with four MPI ranks. Arguments go to train_cifar, e.g. --epochs 3.
set -eu
cd "$(dirname "$0")/.."
. tools/deps.sh

[ -f build/build.ninja ] || configure build -Disa=native $(without_cuda_if_no_gpu)
ninja -C build train_cifar predict inspect
exec mpiexec -n 4 build/train_cifar "$@"
