"""Predicts the time of sums over many machines, and how well a training scales to them.

    python3 tools/scale_model.py                     # tables in Markdown, with their assumptions
    python3 tools/scale_model.py --check 2:1 FILE    # compares with what bench_allreduce printed on 2 nodes x 1 rank

alpha is the time of a short message between nodes, beta the time per byte on a node's link, in each direction, and
gamma the time to add a byte. All ranks of a node share its link. The algorithms are those of par/algorithm.h, whose
formulas leave out segments and the exchange within a node, and "halving-doubling" (Thakur, Rabenseifner and Gropp,
2005, section 4.5), which par/ lacks.
"""
import argparse
import math
import random
import re
import statistics

SEGMENT = 8000  # bytes of a message along the chain, kSegmentBytes in par/shared.cpp
LOCAL_BYTES = 10e9  # bytes per second that a rank copies or sends within a node
# Bytes of gradients (of cifar_net without the biases of its convolutions), and seconds of a step without sums.
NETWORKS = {"cifar_net": (676_714 * 4, 0.010), "resnet50": (25_557_032 * 4, 0.100)}
BUCKET_BYTES, MAX_BUCKETS = 512 * 1024, 16  # models/run/gradient_sum.cpp
BACKWARD = 2 / 3  # fraction of a step; backward finishes the buckets at equal intervals
OURS = ["chain", "doubling"]


class Links:
    def __init__(self, alpha, beta, gamma, per_node):
        self.alpha, self.beta, self.gamma, self.per_node = alpha, beta, gamma, per_node

    def stages_of_chain(self, size, nodes):
        """Returns the number of segments that follow each other, and the seconds of one on a link."""
        segments = max(1, math.ceil(size / (SEGMENT * self.per_node)))
        both_ways = 2 if nodes > 2 else 1  # nodes within the chain send to both neighbours
        # A rank has eight messages under way for each of the following nodes, and adds while others arrive.
        return segments, max(both_ways * size / segments * self.beta, self.alpha / 8, size / segments * self.gamma)

    def chain(self, size, nodes):
        segments, stage = self.stages_of_chain(size, nodes)
        return (segments - 1) * stage + 2 * (nodes - 1) * (self.alpha + stage)

    def ring(self, size, nodes):
        p = nodes * self.per_node
        return 2 * (p - 1) * self.alpha + (p - 1) / p * size * (2 * self.beta + self.gamma)

    def doubling(self, size, nodes):
        between, within = math.ceil(math.log2(nodes)), math.ceil(math.log2(self.per_node))
        return (between * (self.alpha + size * (self.per_node * self.beta + self.gamma))
                + within * (1e-6 + size * (1 / LOCAL_BYTES + self.gamma)))

    def halving_doubling(self, size, nodes):
        slices = (nodes - 1) / nodes * size  # after the ranks of a node have added their vectors
        return (2 * math.ceil(math.log2(nodes)) * self.alpha + 2 * slices * self.beta
                + (size + slices / self.per_node) * self.gamma)

    def best(self, size, nodes, names):
        return min(getattr(self, name)(size, nodes) for name in names)


def buckets_of(size):
    return min(MAX_BUCKETS, math.ceil(size / BUCKET_BYTES))


def step_seconds(links, nodes, size, compute, names):
    """Returns the seconds of a step whose buckets are summed during backward, in turn."""
    end, buckets = 0, buckets_of(size)
    for i in range(buckets):
        ready = compute * (1 - BACKWARD + BACKWARD * (i + 1) / buckets)
        end = max(ready, end) + links.best(size / buckets, nodes, names)
    return end


def simulated_chain(links, size, begins):
    """Returns the end of a sum along the chain if node i begins at begins[i]. Follows each segment along the chain."""
    segments, stage = links.stages_of_chain(size, len(begins))
    passed = [0] * segments  # when each segment has arrived
    for begin in begins:
        free = begin
        for i, arrival in enumerate(passed):
            free = max(free, arrival) + stage
            passed[i] = free + links.alpha
    return max(passed) + (len(begins) - 1) * (links.alpha + stage)


def efficiency_with_stragglers(links, nodes, size, compute, spread):
    """Returns the efficiency of steps whose ranks compute for random times with this standard deviation, as a fraction
    of the mean: with the sum of a last bucket after them, and with waiting alone. Means of 20 steps."""
    draw = random.Random(1)
    with_sum, waiting = [], []
    for _ in range(20):
        begins = [max(draw.gauss(compute, spread * compute) for _ in range(links.per_node)) for _ in range(nodes)]
        with_sum.append(simulated_chain(links, size / buckets_of(size), begins))
        waiting.append(max(begins))
    return compute / statistics.mean(with_sum), compute / statistics.mean(waiting)


def print_table(heads, rows):
    for row in [heads, ["---"] * len(heads), *rows]:
        print("| " + " | ".join(map(str, row)) + " |")


def print_tables(alpha, gamma, per_node):
    print(f"Assumptions: alpha {alpha * 1e6:g} us, 1/gamma {1e-9 / gamma:g} GB/s, {per_node} ranks per node, "
          f"backward {BACKWARD:.2f} of a step.")
    links = {rate: Links(alpha, 8 / (rate * 1e9), gamma, per_node) for rate in (25, 100, 400)}
    rates = [f"{rate} Gbit/s" for rate in links]

    print("\nSmallest vector, in KB, for which the chain is faster than recursive doubling, and than "
          "halving-doubling:\n")
    sizes = [2**i for i in range(8, 34)]
    rows = []
    for nodes in (2, 8, 64, 512):
        rows.append([nodes])
        for link in links.values():
            smallest = lambda other: next(n / 1024 for n in sizes if link.chain(n, nodes) < other(n, nodes))
            rows[-1].append(f"{smallest(link.doubling):g}, {smallest(link.halving_doubling):g}")
    print_table(["nodes", *rates], rows)

    for name, (size, compute) in NETWORKS.items():
        print(f"\nEfficiency of {name}: {size / 1e6:.1f} MB of gradients in {buckets_of(size)} buckets, "
              f"{compute * 1e3:g} ms of computation per step. With sums during backward, and with one sum after it. "
              "The last columns are at 100 Gbit/s: with halving-doubling, and a simulation of a chain with ranks whose "
              "times vary by 2 %, and of these the waiting alone.\n")
        rows = []
        for ranks in (16, 64, 256, 1024, 4096):
            nodes = ranks // per_node
            efficiencies = lambda link, names: (f"{compute / step_seconds(link, nodes, size, compute, names):.2f}, "
                                                f"{compute / (compute + link.best(size, nodes, names)):.2f}")
            varied = efficiency_with_stragglers(links[100], nodes, size, compute, 0.02)
            rows.append([ranks, *(efficiencies(link, OURS) for link in links.values()),
                         efficiencies(links[100], [*OURS, "halving_doubling"]), "{:.2f}, {:.2f}".format(*varied)])
        print_table(["ranks", *rates, "halving-doubling", "2 % variation"], rows)


def check(shape, path):
    nodes, per_node = map(int, shape.split(":"))
    text = open(path).read()
    number = r"([0-9.]+)"
    found = re.search(rf"alpha {number} us, 1/beta {number} GB/s, 1/gamma {number} GB/s here", text)
    alpha, beta, gamma = float(found[1]) * 1e-6, 1e-9 / float(found[2]), 1e-9 / float(found[3])
    links = Links(alpha, beta, gamma, per_node)
    kinds = {"ring": links.ring, "small-message": links.doubling, "shared, no copy": links.chain}
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
