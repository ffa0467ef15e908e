"""Runs a command with MPI on several machines that are made on this one: network, host-name and IPC namespaces with
links to one switch. RATE limits what each machine sends. Needs root, mpiexec of MPICH, and iproute2.

    python3 tools/bench/cluster.py RATE NODES RANKS_PER_NODE COMMAND...
    python3 tools/bench/cluster.py 1gbit 2 2 build/bench_allreduce
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def output(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def why_impossible():
    """Returns None if this machine allows a Cluster, or the reason why not."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} (Debian: iproute2)"
    name = f"rg{os.getpid()}"
    for words in (["netns", "add", name], ["netns", "del", name], ["link", "add", name, "type", "bridge"],
                  ["link", "del", name]):
        made = subprocess.run(["ip", *words], capture_output=True, text=True)
        if made.returncode:
            return f"no network namespaces here: {made.stderr.strip()}"
    return None


class Cluster:
    """Machines with addresses 10.77.0.1 and so on, until the end of a with statement."""

    def __init__(self, nodes):
        self.switch, self.folder = f"rg{os.getpid()}", pathlib.Path(tempfile.mkdtemp())
        self.names = [f"{self.switch}-{i + 1}" for i in range(nodes)]
        output("ip", "link", "add", self.switch, "type", "bridge")
        output("ip", "link", "set", self.switch, "up")
        for i, name in enumerate(self.names):
            output("ip", "netns", "add", name)
            output("ip", "link", "add", name, "type", "veth", "peer", "name", "v0", "netns", name)
            output("ip", "link", "set", name, "master", self.switch, "up")
            output("ip", "-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "v0")
            for device in ("v0", "lo"):
                output("ip", "-n", name, "link", "set", device, "up")
        while any(" state UP " not in output("ip", "-n", name, "link", "show", "v0") for name in self.names):
            time.sleep(0.01)  # UCX uses only links that are running
        # mpiexec calls this in place of ssh, with the address and a command line.
        self.launcher = self.folder / "launcher"
        self.launcher.write_text(f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
name={self.switch}-${{1##*.}}
shift
exec ip netns exec $name unshare --uts --ipc sh -c "hostname $name; $*"
""")
        self.launcher.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for node, name in enumerate(self.names):
            for pid in self.pids(node):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            output("ip", "link", "del", name)  # otherwise its end on the switch would stay for a while
            output("ip", "netns", "del", name)
        output("ip", "link", "del", self.switch)
        shutil.rmtree(self.folder)

    def limit(self, rate):
        for name in self.names:
            output("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "v0", "root", "tbf", "rate", rate,
                   "burst", "32kb", "latency", "200ms")

    def cable(self, node, state):
        """Plugs a machine's cable in (state "up"), or pulls it out ("down")."""
        output("ip", "-n", self.names[node], "link", "set", "v0", state)

    def pids(self, node):
        return list(map(int, output("ip", "netns", "pids", self.names[node]).split()))

    def command(self, ranks_per_node, *words, mpiexec="mpiexec"):
        """Returns a command that runs these words under mpiexec, with this number of ranks on each machine."""
        hosts = ",".join(f"10.77.0.{i + 1}" for i in range(len(self.names)))
        return ["ip", "netns", "exec", self.names[0], mpiexec, "-launcher", "ssh", "-launcher-exec", str(self.launcher),
                "-hosts", hosts, "-iface", "v0", "-n", str(len(self.names) * ranks_per_node), "-ppn",
                str(ranks_per_node), *words]


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    rate, nodes, ranks_per_node, *words = sys.argv[1:]
    if reason := why_impossible():
        sys.exit(f"cluster: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Cluster(int(nodes)) as cluster:
        cluster.limit(rate)
        sys.exit(subprocess.run(cluster.command(int(ranks_per_node), *words)).returncode)


if __name__ == "__main__":
    main()
