#!/bin/sh
# Prints lines of code, without blank lines and comments, for each folder.
#
#     sh tools/loc.sh
#
# Counts C, C++, CUDA, Python, shell, JavaScript, CSS and HTML that git tracks. The product is what users link and run.
set -eu
cd "$(dirname "$0")/.."
git ls-files | awk -F/ '
    /\.(h|c|cpp|cu|cuh|py|sh|js|css|html)$/ || $0 == "tools/monitor" {
        hash = /\.(py|sh)$/ || $0 == "tools/monitor"
        while ((getline line < $0) > 0) {
            sub(/^[ \t]+/, "", line)
            if (line == "" || (hash ? line ~ /^#/ : line ~ /^(\/\/|\/\*|\*)/)) continue
            count[$1]++
            if (NF > 2) count[$1 "/" $2]++
            all++
        }
        close($0)
    }
    END {
        for (folder in count) printf "%-16s %6d\n", folder, count[folder] | "LC_ALL=C sort"
        close("LC_ALL=C sort")
        printf "%-16s %6d\n", "product", count["core"] + count["gpu"] + count["par"] + count["data"] + count["models"]
        printf "%-16s %6d\n", "all", all
    }'
