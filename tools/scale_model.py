"""Predicts the time of sums over many machines, and how well a training scales to them.

    python3 tools/scale_model.py                     # tables in Markdown, with their assumptions
    python3 tools/scale_model.py --check 2:1 FILE    # compares with what bench_allreduce printed on 2 nodes x 1 rank

alpha is the time of a short message between nodes, beta the time per byte on a node's link, in each direction, and
gamma the time to add a byte. All ranks of a node share its link. The algorithms are those of par/algorithm.h between
nodes, after the ranks of each node have added their vectors in shared memory.
"""
import argparse
import math
import random
import re
import statistics

SEGMENT = 8000  # bytes of a message, kMessageBytes in par/peers.h
# Bytes of gradients (of cifar_net without the biases of its convolutions), and seconds of a step without sums.
NETWORKS = {"cifar_net": (676_714 * 4, 0.010), "resnet50": (25_557_032 * 4, 0.100)}
BUCKET_BYTES, MAX_BUCKETS = 512 * 1024, 16  # models/run/gradient_sum.cpp
BACKWARD = 2 / 3  # fraction of a step; backward finishes the buckets at equal intervals


class Links:
    def __init__(self, alpha, beta, gamma, per_node):
        self.alpha, self.beta, self.gamma, self.per_node = alpha, beta, gamma, per_node

    def chain(self, size, nodes):
        segments = max(1, math.ceil(size / (SEGMENT * self.per_node)))
        both_ways = 2 if nodes > 2 else 1  # nodes within the chain send to both neighbours
        # A rank has eight messages in flight to the next one, and adds while others arrive.
        stage = max(both_ways * size / segments * self.beta, self.alpha / 8, size / segments * self.gamma)
        return (segments - 1) * stage + 2 * (nodes - 1) * (self.alpha + stage)

    def ring(self, size, nodes):
        slices = (nodes - 1) / nodes * size
        return 2 * (nodes - 1) * self.alpha + 2 * slices * self.beta + (size + slices / self.per_node) * self.gamma

    def halving(self, size, nodes):
        power = 2 ** math.floor(math.log2(nodes))
        slices = (power - 1) / power * size
        seconds = (2 * math.log2(power) * self.alpha + 2 * slices * self.beta
                   + (size + slices / self.per_node) * self.gamma)
        if power < nodes:  # some nodes send all of the vector to others, and get the sum
            seconds += 2 * (self.alpha + size * self.beta) + size / self.per_node * self.gamma
        return seconds

    def best(self, size, nodes):
        return min(self.halving(size, nodes), self.ring(size, nodes))


def buckets_of(size):
    return min(MAX_BUCKETS, math.ceil(size / BUCKET_BYTES))


def step_seconds(nodes, size, compute, sum_seconds):
    """Returns the seconds of a step whose buckets are summed during backward, in turn."""
    end, buckets = 0, buckets_of(size)
    for i in range(buckets):
        ready = compute * (1 - BACKWARD + BACKWARD * (i + 1) / buckets)
        end = max(ready, end) + sum_seconds(size / buckets, nodes)
    return end


def efficiency_with_stragglers(links, nodes, size, compute, spread):
    """Returns the efficiency of steps whose ranks compute for random times with this standard deviation, as a fraction
    of the mean: with the sum of a last bucket after the slowest rank, and with waiting alone. Means of 20 steps."""
    draw = random.Random(1)
    waiting = statistics.mean(max(draw.gauss(compute, spread * compute) for _ in range(links.per_node * nodes))
                              for _ in range(20))
    return compute / (waiting + links.best(size / buckets_of(size), nodes)), compute / waiting


def print_table(heads, rows):
    for row in [heads, ["---"] * len(heads), *rows]:
        print("| " + " | ".join(map(str, row)) + " |")


def print_tables(alpha, gamma, per_node):
    print(f"Assumptions: alpha {alpha * 1e6:g} us, 1/gamma {1e-9 / gamma:g} GB/s, {per_node} ranks per node, "
          f"backward {BACKWARD:.2f} of a step.")
    links = {rate: Links(alpha, 8 / (rate * 1e9), gamma, per_node) for rate in (25, 100, 400)}
    rates = [f"{rate} Gbit/s" for rate in links]

    for name, (size, compute) in NETWORKS.items():
        print(f"\nEfficiency of {name}: {size / 1e6:.1f} MB of gradients in {buckets_of(size)} buckets, "
              f"{compute * 1e3:g} ms of computation per step. With sums during backward, and with one sum after it. "
              "The last columns are at 100 Gbit/s: the chain of --workers, and ranks whose times vary by 2 %, with the "
              "sum of the last bucket and with waiting alone.\n")
        rows = []
        for ranks in (16, 64, 256, 1024, 4096):
            nodes = ranks // per_node
            efficiencies = lambda sum_seconds: (f"{compute / step_seconds(nodes, size, compute, sum_seconds):.2f}, "
                                                f"{compute / (compute + sum_seconds(size, nodes)):.2f}")
            varied = efficiency_with_stragglers(links[100], nodes, size, compute, 0.02)
            rows.append([ranks, *(efficiencies(link.best) for link in links.values()), efficiencies(links[100].chain),
                         "{:.2f}, {:.2f}".format(*varied)])
        print_table(["ranks", *rates, "chain", "2 % variation"], rows)


def check(shape, path):
    nodes, per_node = map(int, shape.split(":"))
    text = open(path).read()
    number = r"([0-9.]+)"
    found = re.search(rf"alpha {number} us, 1/beta {number} GB/s, 1/gamma {number} GB/s here", text)
    alpha, beta, gamma = float(found[1]) * 1e-6, 1e-9 / float(found[2]), 1e-9 / float(found[3])
    links = Links(alpha, beta, gamma, per_node)
    flat = Links(alpha, per_node * beta, gamma, 1)  # ring and halving use messages between all ranks
    kinds = {"ring": lambda size, nodes: flat.ring(size, nodes * per_node),
             "halving": lambda size, nodes: flat.halving(size, nodes * per_node), "shared, no copy": links.best}
    for size, kind, median in re.findall(rf"^ *(\d+)  (.{{15}}) +{number}", text, re.M):
        if predict := kinds.get(kind.strip()):
            seconds = predict(int(size), nodes)
            print(f"{nodes} x {per_node} {size:>9} {kind} measured {float(median) / 1e3:9.3f} ms, predicted "
                  f"{seconds * 1e3:9.3f} ms, {seconds / float(median) * 1e6 - 1:+.0%}")


def main():
    parser = argparse.ArgumentParser(description="predicts how training scales to many machines")
    parser.add_argument("--alpha", type=float, default=2, help="microseconds per message (2)")
    parser.add_argument("--gamma", type=float, default=10, help="GB/s of additions (10)")
    parser.add_argument("--per-node", type=int, default=8, help="ranks per node (8)")
    parser.add_argument("--check", nargs=2, metavar=("NODES:RANKS", "FILE"),
                        help="compare with what bench_allreduce printed")
    arguments = parser.parse_args()
    if arguments.check:
        check(*arguments.check)
    else:
        print_tables(arguments.alpha * 1e-6, 1e-9 / arguments.gamma, arguments.per_node)


if __name__ == "__main__":
    main()
