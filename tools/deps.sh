# Finds or installs the packages for a build. quickstart.sh and test.sh source it from the top folder.
#
# Looks for the compiler, Meson, ninja, pkg-config, MPI and doctest. As root on Debian and similar systems, it installs
# missing packages of the distribution. Otherwise it prints the command that installs them, and the exit status is 1.

missing=
need() { # command and its package
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
        # $missing is a list, so it is not quoted.
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "missing (Debian's package names):$missing" >&2
        echo "install with: sudo apt-get install$missing" >&2
        exit 1
    fi
fi

configure() { # build folder, Meson options; creates the folder, or sets the options of an existing one
    folder=$1
    shift
    if [ ! -f "$folder/build.ninja" ]; then
        meson setup "$folder" "$@"
    elif ! grep -q rg_tests "$folder/build.ninja"; then # made before doctest was installed, which Meson remembers
        meson setup --wipe "$folder" -Dtests=auto "$@"
    elif [ $# -gt 0 ]; then # without options, Meson would show all of them in a pager
        meson configure "$folder" "$@"
    fi
}

without_cuda_if_no_gpu() { # prints a Meson option for a new build folder, and on standard error what it means
    if sh tools/gpus.sh "$@" >/dev/null; then return 0; fi
    echo "no NVIDIA GPU to use, so the build leaves CUDA out; 'meson configure build -Dcuda=auto' turns it on" >&2
    echo -Dcuda=disabled
}
