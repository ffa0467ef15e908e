#!/bin/sh
# Prints the architecture of each kind of NVIDIA GPU in this machine, in the names of nvcc: sm_86, sm_90a. A kind that is
# too old for the kernels gets only a line on standard error.
#
#     sh tools/gpus.sh [DEVICE_FOLDER]     the folder of device files; default /dev
#
# The exit status is 1 if the kernels can use no GPU. If there are device files but nvidia-smi does not answer, prints
# nothing.
devices=${1:-/dev}
found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    sed -n 's/^\([0-9]*\)\.\([0-9]\)$/sm_\1\2/p' | sed 's/^sm_90$/sm_90a/' | sort -u)
if [ "$found" ]; then
    echo "$found" | grep '^sm_[1-7].$' | sed 's/$/: not used, since the kernels need a GPU of sm_80 or newer/' >&2
    echo "$found" | grep -v '^sm_[1-7].$'
    exit # with status 1 if that printed nothing
fi
for file in "$devices"/nvidia[0-9]* "$devices/dxg"; do # dxg: Windows Subsystem for Linux
    [ -e "$file" ] && exit 0
done
exit 1
