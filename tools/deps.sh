# Sourced by quickstart.sh and test.sh, from the top folder: what both need before they build.
#
# Looks for the compiler, Meson, ninja, pkg-config, MPI and doctest. On Debian and its like, as root, it installs what
# is missing; anyone else gets the exact command and exit status 1. Nothing outside the distribution is fetched.

missing=
need() { # command, package that has it
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

need "${CXX:-c++}" g++
need meson meson
need ninja ninja-build
need pkg-config pkg-config
need mpicc libmpich-dev
need mpiexec mpich
echo '#include <doctest/doctest.h>' | "${CXX:-c++}" -x c++ -E - >/dev/null 2>&1 || missing="$missing doctest-dev"

if [ -n "$missing" ]; then
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "installing:$missing"
        apt-get update -qq
        # Word splitting is meant: $missing is a list.
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "missing (Debian's package names):$missing" >&2
        echo "install with: sudo apt-get install$missing" >&2
        exit 1
    fi
fi

configure() { # build folder, then Meson options: makes the folder, or sets the options of one that exists
    folder=$1
    shift
    if [ -f "$folder/build.ninja" ]; then
        meson configure "$folder" "$@"
    else
        meson setup "$folder" "$@"
    fi
}
