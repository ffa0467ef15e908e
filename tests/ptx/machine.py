"""Runs the blocks of a launch: memory with its state, barriers, and instructions of a whole warp or warpgroup.

Copies and products execute as late as their waits allow: wgmma at wgmma.wait_group, and a bulk copy when no thread can
go on without it. So a missing wait or fence reads memory or registers that have no values yet.
"""
import math
import struct
from operator import mul

from translate import FIRST_SHARED, Fault

WARP, GROUP = 32, 128  # threads of a warp and of a warpgroup
# The state of a byte: it has a value; it may be written; wgmma may read it.
READ, WRITE, ASYNC = 1, 2, 4
VISIBLE = bytes([READ | WRITE | ASYNC]) * 128  # of a core matrix

BF16 = struct.unpack("<65536f", b"".join(struct.pack("<I", i << 16) for i in range(65536)))


# ---- arithmetic ------------------------------------------------------------------------------------------------------

FLOAT = memoryview(bytearray(4)).cast("f")
BITS = memoryview(FLOAT.obj).cast("I")
DOUBLE = memoryview(bytearray(8)).cast("d")
LONG = memoryview(DOUBLE.obj).cast("Q")


def float_of(bits):
    BITS[0] = bits
    return FLOAT[0]


def to_bf16(x):
    FLOAT[0] = x
    bits = BITS[0]
    return 0x7fff if x != x else (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def divide(a, b):
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def divide_whole(a, b):
    if b == 0:
        raise Fault("division of integers by zero")
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def power_of_two(x):
    return math.inf if x >= 1024 else 2.0 ** x


def rounded(x, up):
    """Returns x rounded to f32 in one direction, towards infinity or minus infinity."""
    FLOAT[0] = x
    nearest = FLOAT[0]
    if nearest - nearest != 0 or nearest == x or (nearest > x) == up:
        return nearest
    if nearest == 0:
        return float_of(1 if up else 0x80000001)
    return float_of(BITS[0] + (1 if (nearest > 0) == up else -1))


def permute(a, b, selector):
    source, result = (a | b << 32).to_bytes(8, "little"), 0
    for n in range(4):
        choice = selector >> 4 * n & 15
        byte = source[choice & 7]
        result |= (byte if choice < 8 else 255 * (byte >> 7)) << 8 * n
    return result


ARITHMETIC = {
    "Fault": Fault, "BF16": to_bf16, "DIV": divide, "PRMT": permute, "COPYSIGN": math.copysign,
    "EX2": power_of_two, "IDIV": divide_whole, "IREM": lambda a, b: a - divide_whole(a, b) * b,
    "SQRT": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "MIN": lambda a, b: b if a != a or b < a else a, "MAX": lambda a, b: b if a != a or b > a else a,
    "SATURATE": lambda x: min(max(x, 0.0), 1.0) if x == x else 0.0,
    "TRUNCATE": lambda x: float(math.trunc(x)) if x - x == 0 else x,
    "INTEGER": lambda x, low, high: int(min(max(x, low), high)) if x == x else 0,
    "NEAREST": lambda x: float(round(x)) if x - x == 0 else x,
    "ROUND_rm": lambda x: rounded(x, False), "ROUND_rp": lambda x: rounded(x, True),
    "ROUND_rz": lambda x: rounded(x, x < 0)}


# ---- memory ----------------------------------------------------------------------------------------------------------

class Memory:
    def __init__(self, name, base, size):
        self.name, self.base = name, base
        self.data, self.state = bytearray(b"\xff" * size), bytearray(size)

    def at(self, address, size, needed, align=None):
        """Returns the offset of these bytes, all of which need this state."""
        offset = address - self.base
        if address % (align or size):
            raise Fault(f"address {address:#x} in {self.name} memory is not aligned to {align or size} bytes")
        states = self.state[offset:offset + size] if offset >= 0 else b""
        if len(states) < size or not all(s & (READ | WRITE) for s in states):
            raise Fault(f"{size} bytes at {address:#x} are out of bounds in {self.name} memory")
        if any(~s & needed for s in states):
            raise Fault(f"{size} bytes at {address:#x} in {self.name} memory: " + (
                "read before they are written" if not all(s & READ for s in states) else
                "read by wgmma before a fence" if needed & ASYNC else "must not be written"))
        return offset

    def functions(self, tracked):
        """Returns the functions that load and store, by the names that translate.py gives them. If `tracked`, a thread
        remembers its stores until its next fence.proxy.async."""
        result = {}
        for letter in "BHIiQfd":
            for count in (1, 2, 4):
                result[f"LD_{self.name}_{letter}{count}"] = self.loader(letter, count)
                result[f"ST_{self.name}_{letter}{count}"] = self.storer(letter, count, tracked)
        return result

    def loader(self, letter, count):
        form = struct.Struct(f"<{count}{letter}")
        unpack, size, base, data, state = form.unpack_from, form.size, self.base, self.data, self.state
        last, limit = size - 1, len(data) - size

        def load(address):
            offset = address - base
            if offset % size or not 0 <= offset <= limit or not state[offset] & state[offset + last] & READ:
                self.at(address, size, READ)
            values = unpack(data, offset)
            return values if count > 1 else values[0]
        return load

    def storer(self, letter, count, tracked):
        form = struct.Struct(f"<{count}{letter}")
        pack, size, base, data, state = form.pack_into, form.size, self.base, self.data, self.state
        last, limit, written = size - 1, len(data) - size, bytes([READ | WRITE]) * form.size

        def store(thread, address, *values):
            offset = address - base
            if offset % size or not 0 <= offset <= limit or not state[offset] & state[offset + last] & WRITE:
                self.at(address, size, WRITE)
            pack(data, offset, *values)
            state[offset:offset + size] = written
            if tracked:
                thread.stores.append((offset, size))
        return store


# ---- threads ---------------------------------------------------------------------------------------------------------

class Thread:
    def __init__(self, number, launch):
        self.number, self.ntid, self.nctaid = number, launch.block, launch.grid
        self.site, self.answer = None, None  # the site where it waits, and the answer that lets it go on
        self.tried = None                    # the last wait for a barrier that has failed once
        self.stores, self.barriers = [], []  # what it has stored or initialised since its last fence.proxy.async
        self.fenced, self.sums, self.open, self.products = False, {}, [], []  # wgmma: see the functions of Launch


class Barrier:
    def __init__(self, count):
        self.count, self.pending, self.bytes, self.phase, self.fenced = count, count, 0, 0, False

    def arrive(self, arrivals, expected_bytes):
        self.pending -= arrivals
        self.bytes += expected_bytes
        if self.pending < 0:
            raise Fault(f"more than {self.count} arrivals at a barrier")
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Launch:
    """Runs a grid, one block after the other."""

    def __init__(self, kernel, grid, block, shared_bytes, parameters, memory):
        self.kernel, self.grid, self.block, self.memory = kernel, grid, block, memory
        if len(parameters) != len(kernel.parameters):
            raise Fault(f"{kernel.name}: expected {len(kernel.parameters)} parameters, got {len(parameters)}")
        self.values = [struct.unpack_from(form, parameters[i], at)[0] for i, at, form in kernel.parameter_loads]
        self.shared = Memory("shared", FIRST_SHARED, kernel.static_end - FIRST_SHARED + shared_bytes)
        self.names = {
            **ARITHMETIC, **self.shared.functions(kernel.asynchronous), **memory.functions(False),
            "FENCE_PROXY": self.fence_proxy, "BARRIER_INIT": self.barrier_init, "BARRIER_ARRIVE": self.arrive,
            "BULK_COPY": self.bulk_copy, "FENCE_PRODUCTS": self.fence_products, "PRODUCT": self.product,
            "COMMIT": self.commit,
            "PARAMETER": lambda at, form: struct.unpack_from(form, parameters[at >> 32], at & 0xffffffff)[0]}
        exec(kernel.code, self.names)

    def run(self):
        for z in range(self.grid[2]):
            for y in range(self.grid[1]):
                for x in range(self.grid[0]):
                    self.index = (x, y, z)
                    self.run_block()

    def start_block(self):
        size = len(self.shared.data)
        self.shared.data[:], self.shared.state[:] = b"\xff" * size, bytes([WRITE]) * size
        self.barriers, self.copies = {}, []  # barriers by address; bulk copies that are not complete
        width, height, depth = self.block
        self.threads = [Thread(n, self) for n in range(width * height * depth)]
        for t in self.threads:
            n = t.number
            t.generator = self.names["kernel"](t, self.values, FLOAT, BITS, DOUBLE, LONG, n % width,
                                               n // width % height, n // width // height, *self.index)
            next(t.generator)
        self.warps = [self.threads[i:i + WARP] for i in range(0, len(self.threads), WARP)]
        self.ready = [list(warp) for warp in self.warps]
        self.waiting = [[] for _ in self.warps]

    # ---- scheduling --------------------------------------------------------------------------------------------------

    def run_block(self):
        self.start_block()
        # Warps that come first run ahead as far as barriers let them: producers in every second block, consumers in
        # the others.
        self.order = range(len(self.warps))[::1 if sum(self.index) % 2 == 0 else -1]
        while any(self.ready):
            for warp in self.order:
                self.run_warp(warp)
            self.release()
            while not any(self.ready) and self.copies:
                self.complete_copy()
                self.release()
        if any(self.waiting):
            places = {}
            for t in sum(self.waiting, []):
                places.setdefault(t.site, []).append(t.number)
            self.fail("no thread can go on: " + "; ".join(
                f"{len(threads)} threads, the first {threads[0]}, wait at line {self.kernel.sites[site].line}: "
                f"{self.kernel.sites[site].text[:80]}" for site, threads in places.items()))

    def fail(self, text):
        raise Fault(f"{self.kernel.name}: block {self.index}: {text}")

    def run_warp(self, warp):
        """Runs a warp until each thread has returned or waits for other warps."""
        while self.ready[warp]:
            for t in self.ready[warp]:
                try:
                    t.site, t.arguments = t.generator.send(t.answer)
                    self.waiting[warp].append(t)
                except StopIteration:
                    if t.products or t.open:
                        self.fail(f"thread {t.number} returned without waiting for its products")
                except Exception as error:
                    self.fail(f"thread {t.number}: {self.describe(error)}")
            self.ready[warp] = []
            self.answer_warp(warp)

    def describe(self, error):
        place, trace = "", error.__traceback__
        while trace:
            if trace.tb_frame.f_code.co_filename == self.kernel.name:
                line = self.kernel.lines[trace.tb_lineno]
                place = f"line {line}: " + next(i.text[:160] for i in self.kernel.instructions if i.line == line)
            trace = trace.tb_next
        return f"{place}: {error if isinstance(error, Fault) else repr(error)}"

    def answer_warp(self, warp):
        """Answers the threads that wait for other threads of their warp, if all of these have come."""
        sites = {}
        for t in self.waiting[warp]:
            sites.setdefault(t.site, []).append(t)
        for site, threads in sites.items():
            threads.sort(key=lambda t: t.number)
            i = self.kernel.sites[site]
            if i.op == "mbarrier":
                failed = [t for t in threads if self.fails_once(t)]
                self.go_on(failed, [False] * len(failed))
            combine = WARP_FUNCTIONS.get(i.op)
            if combine is None and i.parts[1:] != ["warp", "sync"]:
                continue
            mask = threads[0].arguments[0] if i.op in ("bar", "shfl") else 0xffffffff
            if sum(1 << t.number % WARP for t in threads) != mask:
                continue
            try:
                answers = combine(self, i, [t.arguments for t in threads]) if combine else [None] * len(threads)
            except Fault as error:
                self.fail(f"warp {warp}: line {i.line}: {i.text[:160]}: {error}")
            self.go_on(threads, answers)

    def go_on(self, threads, answers):
        done = set(threads)
        for t, t.answer in zip(threads, answers):
            self.ready[t.number // WARP].append(t)
        for warp in {t.number // WARP for t in threads}:
            self.waiting[warp] = [t for t in self.waiting[warp] if t not in done]

    def release(self):
        """Answers the threads that wait for other warps, if these have done their part."""
        waiting = sum(self.waiting, [])
        at_barrier = [t for t in waiting if self.kernel.sites[t.site].op == "bar" and not t.arguments]
        if len(at_barrier) == len(self.threads) and len({t.site for t in at_barrier}) == 1:
            return self.go_on(at_barrier, [None] * len(at_barrier))
        for warp in self.order:
            over = [t for t in self.waiting[warp]
                    if self.kernel.sites[t.site].op == "mbarrier" and self.phase_is_over(t)]
            self.go_on(over, [True] * len(over))
            if over:
                break
        for begin in range(0, len(self.threads), GROUP):
            group = self.threads[begin:begin + GROUP]
            members = set(group)
            products = [t for t in waiting if t in members and self.kernel.sites[t.site].op == "wgmma"]
            if products and len(products) == GROUP and len({t.site for t in products}) == 1:
                i = self.kernel.sites[group[0].site]
                try:
                    self.go_on(group, self.run_products(group))
                except Fault as error:
                    self.fail(f"threads {begin} to {begin + GROUP - 1}: line {i.line}: {i.text}: {error}")

    # ---- barriers and copies -----------------------------------------------------------------------------------------

    def barrier_at(self, address):
        if address not in self.barriers:
            raise Fault(f"there is no barrier at {address:#x}")
        return self.barriers[address]

    def barrier_init(self, thread, address, count):
        offset = self.shared.at(address, 8, WRITE)
        self.shared.state[offset:offset + 8] = bytes(8)  # no other access
        self.barriers[address] = Barrier(count)
        thread.barriers.append(self.barriers[address])

    def arrive(self, address, expected_bytes):
        self.barrier_at(address).arrive(1, expected_bytes)

    def phase_is_over(self, thread):
        address, parity = thread.arguments
        if address not in self.barriers:
            self.fail(f"thread {thread.number}: waits for a barrier at {address:#x}, where there is none")
        return self.barriers[address].phase % 2 != parity

    def fails_once(self, thread):
        """Returns true at the first try of a wait whose phase is not over: try_wait may return then."""
        if self.phase_is_over(thread):
            return False
        wait = thread.arguments, self.barriers[thread.arguments[0]].phase
        first, thread.tried = thread.tried != wait, wait
        return first

    def bulk_copy(self, to, source, size, barrier):
        if not self.barrier_at(barrier).fenced:
            raise Fault("the barrier of a copy needs a fence.proxy.async after its initialisation")
        if size % 16:
            raise Fault(f"a copy of {size} bytes, which is not a multiple of 16")
        offset = self.shared.at(to, size, WRITE, 16)
        self.shared.state[offset:offset + size] = bytes([WRITE]) * size
        self.copies.append((offset, self.memory.at(source, size, READ, 16), size, barrier))

    def complete_copy(self):
        to, source, size, barrier = self.copies.pop(0)
        self.shared.data[to:to + size] = self.memory.data[source:source + size]
        self.shared.state[to:to + size] = bytes([READ | WRITE | ASYNC]) * size
        self.barriers[barrier].arrive(0, -size)

    def fence_proxy(self, thread):
        for offset, size in thread.stores:
            self.shared.state[offset:offset + size] = bytes([READ | WRITE | ASYNC]) * size
        for barrier in thread.barriers:
            barrier.fenced = True
        thread.stores, thread.barriers = [], []

    # ---- products of a warpgroup -------------------------------------------------------------------------------------

    def fence_products(self, thread):
        thread.fenced = True

    def product(self, thread, sums, a, b, values):
        if not thread.fenced:
            raise Fault("wgmma without wgmma.fence")
        if sums not in thread.sums:
            thread.sums[sums] = values
        thread.open.append((sums, a, b))

    def commit(self, thread):
        thread.products += thread.open
        thread.open = []

    def run_products(self, group):
        """Executes the committed products. Returns for each thread the sums, by their number."""
        products = group[0].products
        for t in group:
            if t.products != products:
                raise Fault(f"threads {group[0].number} and {t.number} have issued other products")
            t.answer = {}
        for sums in dict.fromkeys(p[0] for p in products):
            columns = 2 * len(group[0].sums[sums])
            a = self.operand([p[1] for p in products if p[0] == sums], 64)
            b = self.operand([p[2] for p in products if p[0] == sums], columns)
            for t in group:
                lane, warp = t.number % WARP, t.number % GROUP // WARP
                values = list(t.sums.pop(sums))
                for i in range(len(values)):
                    row, column = 16 * warp + lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
                    FLOAT[0] = values[i] + sum(map(mul, a[row], b[column]))
                    values[i] = FLOAT[0]
                t.answer[sums] = values
        for t in group:
            t.products, t.fenced = [], False
        return [t.answer for t in group]

    def operand(self, operands, count):
        """Returns the rows (for b: columns) of an operand of consecutive products. Each is given as its descriptor, and
        1 if it is transposed: a core matrix then has 8 values of 8 rows, instead of 8 rows of 8 values."""
        rows = [[] for _ in range(count)]
        for d, transposed in operands:
            start, next_values, next_rows = ((d >> shift & 0x3fff) << 4 for shift in (0, 16, 32))
            if d & ~0x3fff3fff3fff:
                raise Fault(f"descriptor {d:#x}: swizzles and base offsets are not implemented")
            for r in range(0, count, 8):
                for octet in (0, 1):
                    address = start + r // 8 * next_rows + octet * next_values
                    offset = address - FIRST_SHARED
                    if self.shared.state[offset:offset + 128] != VISIBLE:
                        self.shared.at(address, 128, READ | ASYNC, 16)
                    core = [BF16[bits] for bits in struct.unpack_from("<64H", self.shared.data, offset)]
                    for n in range(8):
                        rows[r + n] += core[n::8] if transposed else core[8 * n:8 * n + 8]
        return rows


# ---- the instructions of a warp: each returns the answers of all lanes -----------------------------------------------

def shuffle(_, i, arguments):
    lanes = {lane: arguments for lane, arguments in zip(
        [n for n in range(WARP) if arguments[0][0] >> n & 1], arguments)}
    answers = []
    for lane, (_, value, operand, limits) in lanes.items():
        segment = limits >> 8 & 31
        last = lane & segment | limits & 31 & ~segment
        source = lane ^ operand if "bfly" in i.parts else lane & segment | operand & 31 & ~segment
        inside = source <= last
        if inside and source not in lanes:
            raise Fault(f"lane {lane} reads from lane {source}, which is not in the mask")
        answers.append((lanes[source][1] if inside else value, inside))
    return answers


def load_matrices(block, i, arguments):
    rows = []
    for (address,) in arguments:
        rows.append(struct.unpack_from("<8H", block.shared.data, block.shared.at(address, 16, READ)))
    answers = []
    for lane in range(WARP):
        g, t = lane // 4, lane % 4
        registers = []
        for m in range(0, WARP, 8):
            low, high = (rows[m + 2 * t][g], rows[m + 2 * t + 1][g]) if i.transposed else rows[m + g][2 * t:2 * t + 2]
            registers.append(low | high << 16)
        answers.append(registers)
    return answers


def halves(registers):
    return [BF16[half] for r in registers for half in (r & 0xffff, r >> 16)]


def multiply(_, i, arguments):
    if i.parts[1:] == "sync aligned m16n8k16 row col f32 bf16 bf16 f32".split():
        # The elements of lane (g, t): a[0] and a[1] are (g, 2t) and (g, 2t+1), and so on; see gpu/mma.cuh.
        a, b = ([halves(lane[n]) for lane in arguments] for n in (0, 1))
        rows = [sum((a[4 * g + t][2 * h:2 * h + 2] for t in range(4)), []) +
                sum((a[4 * g + t][2 * h + 4:2 * h + 6] for t in range(4)), []) for h in (0, 1) for g in range(8)]
        columns = [sum((b[4 * g + t][:2] for t in range(4)), []) +
                   sum((b[4 * g + t][2:] for t in range(4)), []) for g in range(8)]
    else:
        raise Fault("unknown product")
    answers = []
    for lane, (_, _, c) in enumerate(arguments):
        g, t = lane // 4, lane % 4
        d = []
        for n, value in enumerate(c):
            FLOAT[0] = value + sum(map(mul, rows[g + n // 2 * 8], columns[2 * t + n % 2]))
            d.append(FLOAT[0])
        answers.append(d)
    return answers


WARP_FUNCTIONS = {"shfl": shuffle, "ldmatrix": load_matrices, "mma": multiply}
