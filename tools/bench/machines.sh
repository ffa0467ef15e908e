#!/bin/sh
# Runs a command with MPI on several machines that are made on this one: network, host-name and IPC namespaces with
# links to one switch. RATE limits what each machine sends. Needs root, mpiexec of MPICH, and iproute2.
#
#     sh tools/bench/machines.sh RATE NODES RANKS_PER_NODE COMMAND...
#     sh tools/bench/machines.sh 1gbit 2 2 build/bench_allreduce
set -eu
rate=$1 nodes=$2 per_node=$3
shift 3
name=rg$$ hosts= work=$(mktemp -d)
cleanup() {
    for i in $(seq "$nodes"); do ip netns del "$name-$i" 2>"$work/log" || true; done
    ip link del "$name" 2>"$work/log" || true
    rm -r "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
ip link add "$name" type bridge
ip link set "$name" up
for i in $(seq "$nodes"); do
    ip netns add "$name-$i"
    ip link add "$name-$i" type veth peer name v0 netns "$name-$i"
    ip link set "$name-$i" master "$name" up
    ip -n "$name-$i" addr add "10.77.0.$i/24" dev v0
    ip -n "$name-$i" link set v0 up
    ip -n "$name-$i" link set lo up
    ip netns exec "$name-$i" tc qdisc add dev v0 root tbf rate "$rate" burst 32kb latency 200ms
    hosts=$hosts${hosts:+,}10.77.0.$i
done
cat >"$work/launcher" <<L
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
name=$name-\${1##*.}
shift
exec ip netns exec "\$name" unshare --uts --ipc sh -c "hostname \$name; \$*"
L
chmod +x "$work/launcher"
sleep 1 # until the switch passes packets on
ip netns exec "$name-1" mpiexec -launcher ssh -launcher-exec "$work/launcher" -hosts "$hosts" -iface v0 \
    -n $((nodes * per_node)) -ppn "$per_node" "$@"
