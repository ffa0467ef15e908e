#!/bin/sh
# Prints the architecture of each kind of NVIDIA GPU in this machine, in the names of nvcc: sm_86, sm_90a.
#
#     sh tools/gpus.sh [DEVICE_FOLDER]     the folder of device files; default /dev
#
# The exit status is 1 if there is no GPU. If there are device files but nvidia-smi does not answer, prints nothing.
devices=${1:-/dev}
found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    sed -n 's/^\([0-9]*\)\.\([0-9]\)$/sm_\1\2/p' | sed 's/^sm_90$/sm_90a/' | sort -u)
if [ "$found" ]; then
    echo "$found"
    exit 0
fi
for file in "$devices"/nvidia[0-9]* "$devices/dxg"; do # dxg: Windows Subsystem for Linux
    [ -e "$file" ] && exit 0
done
exit 1
