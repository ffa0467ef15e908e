#!/bin/sh
# Downloads the binary version of CIFAR-10 (162 MB), checks it, and unpacks it.
#
#   sh tools/get_cifar10.sh [--from FILE|URL] [DIR]
#
# Creates the folder cifar-10-batches-bin in DIR (default: the current folder). --from uses an archive on the disk or
# another URL. The folder appears under its final name only when it is complete, and no other file is changed or
# removed. Needs tar, md5sum or md5, and curl or wget unless FILE is given.
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
        --from) [ $# -ge 2 ] || die "--from: expected a file or a URL after it, got the end"; from=$2; shift ;;
        --from=*) from=${1#--from=} ;;
        -*) die "unknown option $1; see --help" ;;
        *) [ -z "$dir" ] || die "expected one folder, got $dir and $1; see --help"; dir=$1 ;;
    esac
    shift
done
dir=${dir:-.}

checksum() {
    if command -v md5sum >/dev/null 2>&1; then md5sum <"$1" | cut -d ' ' -f 1
    elif command -v md5 >/dev/null 2>&1; then md5 -q <"$1"
    else die "expected md5sum or md5, got neither; install one"
    fi
}
download() {
    if command -v curl >/dev/null 2>&1; then curl -fL --retry 3 -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then wget -O "$2" "$1"
    else die "expected curl or wget, got neither; download $1 yourself and pass it with --from"
    fi
}

if [ -e "$dir/$name" ]; then
    [ -f "$dir/$name/test_batch.bin" ] || die "expected the data set in $dir/$name, got another folder; move it away"
    echo "$dir/$name exists already."
else
    mkdir -p "$dir" || die "expected to create $dir, got an error; choose another folder"
    # The temporary folder is next to the target, so that the last step is a rename within one file system.
    temp=$(mktemp -d "$dir/.get_cifar10.XXXXXX") || die "expected to write to $dir, got an error; choose another folder"
    trap 'rm -rf "$temp"' EXIT
    trap 'exit 1' HUP INT TERM
    case $from in
        *://*) archive=$temp/archive.tar.gz
               download "$from" "$archive" ||
                   die "expected to download $from, got an error; download it elsewhere and pass it with --from" ;;
        *) archive=$from
           [ -f "$archive" ] || die "--from: expected a file or a URL, got $archive, which does not exist" ;;
    esac
    got=$(checksum "$archive")
    [ "$got" = "$wanted" ] || die "$from: expected MD5 $wanted, got ${got:-none}; download it again"
    tar -xzf "$archive" -C "$temp" || die "$from: expected to unpack it, got an error; is the disk full?"
    [ -f "$temp/$name/test_batch.bin" ] ||
        die "$from: expected $name/test_batch.bin in the archive, got none; download it again"
    mv "$temp/$name" "$dir/$name" || die "expected to create $dir/$name, got an error; is it in use?"
    echo "CIFAR-10 is in $dir/$name."
fi
path=$(cd "$dir/$name" && pwd)
echo "To train on it, run in the build folder: mpiexec -n 4 ./train_cifar --data '$path'"
