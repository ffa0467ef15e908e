#!/bin/sh
# Fetches the binary version of CIFAR-10 (162 MB), checks it, and unpacks it.
#
#   sh tools/get_cifar10.sh [--from FILE|URL] [DIR]
#
# DIR (default: the current folder) gets a folder cifar-10-batches-bin. --from takes an archive that is already there,
# or another address. Nothing appears under the final name before the checksum is right and the archive is unpacked,
# and no file of the user's is changed or removed. Needs tar, md5sum or md5, and curl or wget unless FILE is given.
set -eu

url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
wanted=c32a1d4ab5d03f1284b67883e8d87530
name=cifar-10-batches-bin

die() { echo "get_cifar10.sh: $*" >&2; exit 1; }
usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; }

from=$url
dir=
while [ $# -gt 0 ]; do
    case $1 in
        --help) usage; exit 0 ;;
        --from) [ $# -ge 2 ] || die "--from: expected a file or an address"; from=$2; shift ;;
        --from=*) from=${1#--from=} ;;
        -*) die "unknown option $1; see --help" ;;
        *) [ -z "$dir" ] || die "expected one folder, got $dir and $1"; dir=$1 ;;
    esac
    shift
done
dir=${dir:-.}

checksum() {
    if command -v md5sum >/dev/null 2>&1; then md5sum <"$1" | cut -d ' ' -f 1
    elif command -v md5 >/dev/null 2>&1; then md5 -q <"$1"
    else die "expected md5sum or md5, found neither"
    fi
}
download() {
    if command -v curl >/dev/null 2>&1; then curl -fL --retry 3 -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then wget -O "$2" "$1"
    else die "expected curl or wget, found neither; download $1 yourself and pass it with --from"
    fi
}

if [ -e "$dir/$name" ]; then
    [ -f "$dir/$name/test_batch.bin" ] || die "$dir/$name exists but is not the data set; move it away"
    echo "$dir/$name is there already."
else
    mkdir -p "$dir" || die "cannot make the folder $dir"
    # Beside the target, so that the last step is a rename within one file system.
    temp=$(mktemp -d "$dir/.get_cifar10.XXXXXX") || die "cannot write to $dir"
    trap 'rm -rf "$temp"' EXIT
    trap 'exit 1' HUP INT TERM
    case $from in
        *://*) archive=$temp/archive.tar.gz
               download "$from" "$archive" || die "cannot download $from; fetch it elsewhere and pass it with --from" ;;
        *) archive=$from; [ -f "$archive" ] || die "expected an archive, found no file $archive" ;;
    esac
    got=$(checksum "$archive")
    [ "$got" = "$wanted" ] || die "$from: expected MD5 $wanted, got ${got:-none}; the file is damaged or another one"
    tar -xzf "$archive" -C "$temp" || die "cannot unpack $from (is the disk full?)"
    [ -f "$temp/$name/test_batch.bin" ] || die "$from: expected $name/test_batch.bin in the archive, found none"
    mv "$temp/$name" "$dir/$name" || die "cannot move the data to $dir/$name"
    echo "CIFAR-10 is in $dir/$name."
fi
path=$(cd "$dir/$name" && pwd)
echo "Train on it, in the build folder: mpiexec -n 4 ./train_cifar --data '$path'"
