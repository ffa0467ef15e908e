"""Reads machine code (SASS) of NVIDIA GPUs and follows the path of single warps through it, for gpu_cost.py.

A warp computes what decides its path and its addresses: integers, predicates and kernel parameters. Floats and loaded
values are unknown; a branch that depends on them counts as not taken. Lanes diverge and meet again as BSSY and BSYNC
say. Barriers never wait: warps of a block are taken to advance together.

The time of a warp follows from the bits that the compiler puts into each instruction: cycles to the next instruction,
and the scoreboards on which it waits. Latencies of loads are assumptions (LATENCY).
"""
import re
import struct
import subprocess
import tempfile

ALL, M = 0xffffffff, 0xffffffff
# Cycles until a result is there, for instructions without a fixed latency. Loads of global memory: a mix of L2 and HBM,
# or L1 if the warp has read the same memory before.
L1_LATENCY = 40
LATENCY = {"LDG": 550, "LDS": 30, "LDSM": 33, "SHFL": 25, "MUFU": 24, "I2F": 24, "F2I": 24, "F2F": 24, "S2R": 30,
           "S2UR": 40, "LDC": 40, "SYNCS": 30, "R2UR": 12}
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
NO_RESULT = ("ST", "RED", "BAR", "BSSY", "BSYNC", "NOP", "UBLKCP", "SYNCS", "WARP", "YIELD", "MEMBAR", "FENCE",
             "DEPBAR", "ERRBAR", "CCTL", "ENDCOLL", "USETMAXREG")
UNIFORM = ("UIADD3", "UIMAD", "ULEA", "ULOP3", "UMOV", "USEL", "UISETP", "USHF", "ULDC", "UPRMT", "UPLOP3")
LANES = {ALL: list(range(32))}


def lanes_of(mask):
    if mask not in LANES:
        LANES[mask] = [n for n in range(32) if mask >> n & 1]
    return LANES[mask]


def attributes(info):
    """Returns (format, attribute, the first two words) of each entry of a section .nv.info."""
    at = 0
    while at < len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        size = size if form == 4 else 0
        yield form, kind, struct.unpack_from("<2I", info, at + 4) if size >= 8 else (0, 0)
        at += 4 + size


class Elf:
    def __init__(self, path):
        self.data = d = path.read_bytes()
        table, = struct.unpack_from("<Q", d, 0x28)
        size, count, names = struct.unpack_from("<HHH", d, 0x3a)
        headers = [struct.unpack_from("<IIQQQQII", d, table + n * size) for n in range(count)]
        name = lambda h: d[headers[names][4] + h[0]:].split(b"\0", 1)[0].decode()
        self.sections = {name(h): h for h in headers}

        symbols, strings = self.contents(".symtab"), self.contents(".strtab")
        names = [strings[struct.unpack_from("<I", symbols, at)[0]:].split(b"\0", 1)[0].decode()
                 for at in range(0, len(symbols), 24)]
        self.registers = {names[symbol]: count for form, attribute, (symbol, count) in attributes(
            self.contents(".nv.info")) if (form, attribute) == (4, 0x2f)}  # EIATTR_REGCOUNT

    def contents(self, name):
        h = self.sections[name]
        return self.data[h[4]:h[4] + h[5]]


class Kernel:
    """The code and the resources of a kernel in a cubin."""

    def __init__(self, elf, name, arch, nvdisasm):
        self.name = name
        self.registers = elf.registers[name]
        shared = elf.sections.get(".nv.shared." + name)
        self.shared_bytes = shared[5] if shared else 0
        self.read_parameters(elf.contents(".nv.info." + name))
        code = elf.contents(".text." + name)
        with tempfile.NamedTemporaryFile() as f:
            f.write(code)
            f.flush()
            text = subprocess.run([nvdisasm, "-b", re.sub("sm_(\\d+)a?", "SM\\1", arch), f.name], capture_output=True,
                                  text=True, check=True).stdout
        self.code = {}
        for m in re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?([^;{}]*\S)\s*;", text):
            address = int(m[1], 16)
            self.code[address] = Instruction(m[2], struct.unpack_from("<Q", code, address + 8)[0])
        missing = len(code) // 16 - len(self.code)
        if missing:
            raise SystemExit(f"gpu_cost.py: {nvdisasm} does not know {missing} instructions of {name}; "
                             "take that of a newer CUDA")
        self.spills = sum(i.base in ("LDL", "STL") for i in self.code.values())

    def read_parameters(self, info):
        """Fills `offsets` with the place of each parameter in constant bank 0 (EIATTR_PARAM_CBANK, KPARAM_INFO)."""
        base = next(v[1] & 0xffff for form, kind, v in attributes(info) if (form, kind) == (4, 0x0a))
        self.offsets = {v[1] & 0xffff: base + (v[1] >> 16) for form, kind, v in attributes(info)
                        if (form, kind) == (4, 0x17)}


def source(text, bits=32):
    """Returns a function that computes an operand from a warp: None (unknown), an int for all lanes, or a list."""
    text = text.replace(".reuse", "").replace(".64", "")
    if text[0] in "-~!|" and not re.match(r"-\d", text):
        inner = source(text[1:].rstrip("|"), bits)
        change = {"-": lambda x: (x ^ M) + 1, "~": lambda x: x ^ M, "!": lambda x: 1 - x,
                  "|": lambda x: x if x < 1 << 31 else (1 << 32) - x}[text[0]]
        return lambda w: apply(change, inner(w))
    if text in ("RZ", "URZ", "SRZ"):
        return lambda w: 0
    if text in ("PT", "UPT"):
        return lambda w: 1
    if m := re.fullmatch(r"(U?R)(\d+)(?:\.H\d_H\d|\.B\d|\.F32)?", text):
        low, high = m[1] + m[2], m[1] + str(int(m[2]) + 1)
        if bits == 32:
            return lambda w: w.registers.get(low)
        return lambda w: apply(lambda a, b: a | b << 32, w.registers.get(low), w.registers.get(high))
    if re.fullmatch(r"U?P\d", text):
        return lambda w: w.registers.get(text)
    if m := re.fullmatch(r"c\[0x0\]\[(?:(\w+)\+)?(?:(0x[0-9a-f]+)|(U?R\d+|U?RZ))\]", text):
        index, offset = (m[1] or m[3] or "").replace("URZ", "").replace("RZ", ""), int(m[2] or "0", 16)
        if index:
            return lambda w: apply(lambda i: w.constant(i + offset, bits), w.registers.get(index, 0))
        return lambda w: w.constant(offset, bits)
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        value = int(text, 16) & ((1 << bits) - 1)
        return lambda w: value
    if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?", text):  # a float
        bits_of = struct.unpack("<I", struct.pack("<f", float(text)))[0]
        return lambda w: bits_of
    return lambda w: None


def apply(f, *values):
    if None in values:
        return None
    if list not in map(type, values):
        return f(*values)
    return [f(*v) for v in zip(*[v if type(v) is list else [v] * 32 for v in values])]


def signed(x, bits=32):
    x &= (1 << bits) - 1
    return x - (x >> bits - 1 << bits)


COMPARE = {"EQ": int.__eq__, "NE": int.__ne__, "LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__}


def as_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits & M))[0]


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def float_above(x):
    bits = float_bits(float(x))
    return bits + (as_float(bits) < x)


def lookup(table, *inputs):
    """Returns the result of LOP3: each bit is the bit of the table that the three input bits at its position select."""
    result = 0
    for row in range(8):
        if table >> row & 1:
            term = M
            for n, x in enumerate(inputs):
                term &= x if row >> 2 - n & 1 else ~x
            result |= term
    return result & M


class Instruction:
    def __init__(self, text, control):
        self.text = text
        m = re.fullmatch(r"(?:@(!?)(U?P\w+)\s+)?(\S+)\s*(.*)", text)
        self.guard = m[2] and source(m[1] + m[2])
        self.name, *self.mods = m[3].split(".")
        self.base = self.name[1:] if self.name in UNIFORM else self.name
        self.operands = [o.strip() for o in m[4].split(",") if o.strip()]
        self.stall, self.sets, self.frees = control >> 41 & 15, control >> 46 & 7, control >> 49 & 7
        self.waits = [n for n in range(6) if control >> 52 + n & 1]
        self.latency = LATENCY.get(self.base, 20)
        self.width = next((WIDTHS[x] for x in self.mods if x in WIDTHS), 4)
        self.targets, self.compute, self.wide = [], None, False
        self.memory = self.base in ("LDG", "STG", "LDS", "STS", "LDSM", "REDG", "ATOMG")
        if self.memory:
            operand = next(o for o in self.operands if "[" in o)
            self.address = self.address_of(re.findall(r"\[([^\[\]]*)\]", operand)[-1])
        if self.base not in ("BRA", "CALL", "RET", "EXIT", "BREAK"):
            self.decode()

    @staticmethod
    def address_of(text):
        parts = []
        for part in text.split("+"):
            scale = re.search(r"\.X(\d+)", part)
            get = source(re.sub(r"\.X\d+|\.U32", "", part), 64 if ".64" in part else 32)
            parts.append((get, int(scale[1]) if scale else 1))
        return lambda w: apply(lambda *v: sum(x * s for x, (_, s) in zip(v, parts)), *[get(w) for get, _ in parts])

    def decode(self):
        """Fills `targets` (registers and predicates that are written) and `compute`, a function of the warp."""
        operands = list(self.operands)
        if self.base.startswith(NO_RESULT) and not (self.base == "SYNCS" and "PHASECHK" in self.mods):
            if "TRY_ALLOC" in self.mods:
                self.targets, self.compute = operands[:1], lambda w: 1
            return
        is_predicate = lambda o: re.fullmatch(r"U?P[\dT]", o)
        if self.base in ("LOP3", "SHFL") and is_predicate(operands[0]):
            operands[:2] = operands[1::-1]
        if operands and not is_predicate(operands[0]):
            self.targets.append(operands.pop(0).split(".")[0])
        while operands and is_predicate(operands[0]) and self.base not in ("SEL", "P2R"):
            self.targets.append(operands.pop(0))
        if self.base in ("PLOP3", "VOTEU", "VOTE", "ELECT"):  # all operands are predicates
            count = 2 if self.base == "PLOP3" else 1
            operands, self.targets = self.operands[count:], self.operands[:count]
        f = getattr(self, "op_" + self.base, None)
        wide = "WIDE" in self.mods or ("64" in self.mods and self.base in ("LDC", "IADD3")) or self.base == "CS2R"
        registers = {"HMMA": 4, "HGMMA": 1, "DADD": 2, "DMUL": 2, "DFMA": 2}.get(self.base, self.width // 4)
        if self.base == "LDSM":
            registers = int(self.mods[-1])
        if f:
            self.compute = f(operands)
            registers = 2 if wide else 1
        self.wide = wide and f
        first = self.targets[0] if self.targets else ""
        if registers > 1 and re.fullmatch(r"U?R\d+", first):
            name, number = re.match(r"(U?R)(\d+)", first).groups()
            self.targets[1:1] = [name + str(int(number) + n) for n in range(1, registers)]

    # ---- instructions that compute integers and predicates: each returns a function of the warp -------------------

    def map(self, operands, f, bits=()):
        get = [source(o, bits[n] if n < len(bits) else 32) for n, o in enumerate(operands)]
        return lambda w: apply(f, *[g(w) for g in get])

    def op_MOV(self, o):
        return self.map(o[:1], lambda a: a)

    def op_LDC(self, o):
        return self.map(o[:1], lambda a: a & (255 if "U8" in self.mods else ~0), (64 if "64" in self.mods else 32,))

    def op_S2R(self, o):
        return lambda w: w.special.get(o[0], 0)

    op_S2UR = op_S2R

    def op_CS2R(self, o):
        return lambda w: 0

    def op_R2UR(self, o):
        get = source(o[0])
        return lambda w: (lambda v: v[w.lanes[0]] if type(v) is list else v)(get(w))

    def op_SEL(self, o):
        return self.map(o[:3], lambda a, b, p: a if p else b)

    op_FSEL = op_SEL

    def op_IADD3(self, o):
        bits = (64,) * 3 if "64" in self.mods else ()
        top = 64 if bits else 32
        carries = len(self.targets) > 1
        if "X" not in self.mods:
            o = o[:3]

        def f(*v):
            total = sum(v)
            return (total & M, total >> 32 & 1, total >> 33) if carries else total & (1 << top) - 1
        return self.map(o, f, bits)

    op_VIADD = op_IADD3

    def op_IMAD(self, o):
        kind = (lambda x: x & M) if "U32" in self.mods else signed
        if "WIDE" in self.mods:
            return self.map(o[:3], lambda a, b, c: kind(a) * kind(b) + c & (1 << 64) - 1, (32, 32, 64))
        if "HI" in self.mods:
            return self.map(o[:3], lambda a, b, c: kind(a) * kind(b) + c >> 32 & M, (32, 32, 64))
        if "X" in self.mods:
            return self.map(o[:4], lambda a, b, c, p: a * b + c + p & M)
        return self.map(o[:3], lambda a, b, c: a * b + c & M)

    def op_LEA(self, o):
        carries = len(self.targets) > 1
        result = lambda total: (total & M, total >> 32 & 1) if carries else total & M
        sign = "SX32" in self.mods
        if "HI" not in self.mods:
            return self.map(o[:3], lambda a, b, n: result(((a & M) << n & M) + b))
        if sign:
            return self.map(o, lambda a, b, n, p=0: result(((signed(a) << n) >> 32 & M) + b + p))
        return self.map(o, lambda a, b, c, n, p=0: result((((c & M) << 32 | a & M) << n >> 32 & M) + b + p))

    def op_SHF(self, o):
        kind, high = next(x for x in self.mods if x[0] in "SU"), "HI" in self.mods
        number = (lambda x: signed(x, 64)) if kind[0] == "S" else (lambda x: x)
        if self.mods[0] == "L":
            return self.map(o, lambda a, n, c: ((c << 32 | a) << (n & 63) >> (32 if high else 0)) & M)
        if kind in ("U64", "S64"):
            return self.map(o, lambda a, n, c: number(c << 32 | a) >> (n & 63) & M)
        return self.map(o, lambda a, n, c: (number(c << 32) >> 32 >> min(n, 32)) & M)

    def op_LOP3(self, o):
        both, table = len(self.targets) > 1, int(o[3], 16)

        def f(a, b, c):
            bits = lookup(table, a, b, c)
            return (bits, int(bits != 0)) if both else bits
        return self.map(o[:3], f)

    def op_PLOP3(self, o):
        tables = [int(x, 16) for x in o[3:5]]
        return self.map(o[:3], lambda a, b, c: tuple(t >> (4 * a + 2 * b + c) & 1 for t in tables))

    def op_ISETP(self, o):
        kind = (lambda x: x & M) if "U32" in self.mods else signed
        compare, both = COMPARE[self.mods[0]], "AND" in self.mods
        extended = "EX" in self.mods  # the upper halves of 64 bits; the last predicate compares the lower halves

        def f(a, b, p, low=0):
            a, b = kind(a), kind(b)
            test = low if extended and a == b else int(compare(a, b))
            return (test & p, (1 - test) & p) if both else (test | p, (1 - test) | p)
        return self.map(o, f)

    def op_IABS(self, o):
        return self.map(o, lambda a: abs(signed(a)))

    def op_VIMNMX(self, o):
        kind = (lambda x: x & M) if "U32" in self.mods else signed
        return self.map(o[:3], lambda a, b, p: (min if p else max)(kind(a), kind(b)) & M)

    op_IMNMX = op_VIMNMX

    def op_VIADDMNMX(self, o):
        return self.map(o[:4], lambda a, b, c, p: (min if p else max)(signed(a + b), signed(c)) & M)

    def op_PRMT(self, o):
        def f(a, selector, b):
            data = (a | b << 32).to_bytes(8, "little")
            return sum(data[selector >> 4 * n & 7] << 8 * n for n in range(4))
        return self.map(o[:3], f)

    def op_P2R(self, o):
        keep, mask = source(o[1]), int(o[2], 16)

        def f(w):
            predicates = [w.registers.get(f"P{n}") or 0 for n in range(7)]
            return apply(lambda k, *p: k & ~mask | sum(b << n for n, b in enumerate(p)) & mask, keep(w), *predicates)
        return f

    def op_HFMA2(self, o):
        if [x.strip("-") for x in o[:2]] != ["RZ", "RZ"]:
            return lambda w: None
        value = struct.unpack("<I", struct.pack("<ee", float(o[3]), float(o[2])))[0]  # loads a constant
        return lambda w: value

    def op_I2F(self, o):
        if "F64" in self.mods or "RP" not in self.mods:
            return lambda w: None
        kind = (lambda x: x) if "U32" in self.mods else signed
        return self.map(o, lambda a: float_above(kind(a)))

    def op_MUFU(self, o):
        if self.mods != ["RCP"]:
            return lambda w: None
        return self.map(o, lambda a: float_bits(1 / as_float(a)) if abs(as_float(a)) > 2e-38 else 0x7f800000)

    def op_F2I(self, o):
        if "U32" not in self.mods:
            return lambda w: None
        return self.map(o, lambda a: int(max(0, min(as_float(a), M))) & M)

    def op_SHFL(self, o):
        get, lane = source(o[0]), source(o[1])
        if self.mods != ["IDX"]:
            return lambda w: None
        return lambda w: apply(lambda n: (lambda v: v[n] if type(v) is list else v)(get(w)), lane(w))

    def op_SYNCS(self, o):
        return lambda w: 1  # the phase of a barrier is over

    def op_ELECT(self, o):
        return lambda w: [int(n == w.lanes[0]) for n in range(32)]


class Warp:
    """Follows one warp. Afterwards, `counts` has the number of executions of each instruction, by address."""

    def __init__(self, kernel, parameters, grid, block, index, warp):
        self.kernel, self.bank = kernel, bytearray(0x1000)
        struct.pack_into("<6I", self.bank, 0, *block, *grid)
        for n, data in enumerate(parameters):
            self.bank[kernel.offsets[n]:kernel.offsets[n] + len(data)] = data
        threads = [warp * 32 + n for n in range(32)]
        self.special = {f"SR_CTAID.{axis}": index[n] for n, axis in enumerate("XYZ")}
        self.special |= {"SR_TID.X": [t % block[0] for t in threads], "SR_TID.Y": [t // block[0] for t in threads],
                         "SR_TID.Z": 0, "SR_LANEID": list(range(32))}
        self.registers, self.counts = {}, dict.fromkeys(kernel.code, 0)
        self.sectors = {"LDG": set(), "STG": set()}      # of 32 bytes, touched at least once
        self.requests, self.lines = 0, 0                 # loads and stores of global memory; 128-byte lines in them
        self.wavefronts, self.ideal_wavefronts = 0, 0    # of shared memory; the latter without bank conflicts
        self.unknown, self.time, self.products_end = 0, 0, 0

    def constant(self, offset, bits):
        return int.from_bytes(self.bank[offset:offset + bits // 8], "little")

    def write(self, i, value):
        targets = i.targets
        if i.wide:
            values = [apply(lambda v: v & M, value), apply(lambda v: v >> 32, value)]
        elif type(value) is tuple:
            values = value
        elif type(value) is list and type(value[0]) is tuple:
            values = [list(v) for v in zip(*value)]
        else:
            values = [value] * len(targets) if value is None else [value]
        for target, v in zip(targets, values):
            if target in ("RZ", "URZ", "PT", "UPT"):
                continue
            if self.mask != ALL and target[0] != "U":
                old = self.registers.get(target)
                if v is None:
                    v = old
                else:
                    merged = list(old) if type(old) is list else [old or 0] * 32
                    for n in self.lanes:
                        merged[n] = v[n] if type(v) is list else v
                    v = merged
            self.registers[target] = v

    def touch(self, i):
        """Counts a memory access."""
        addresses = i.address(self)
        if addresses is None:
            self.unknown += 1
            return
        at = [addresses] * 32 if type(addresses) is int else addresses
        at = [at[n] for n in self.lanes]
        if i.base == "LDSM":
            count = int(i.mods[-1])
            groups, words = [at[8 * n:8 * n + 8] for n in range(count)], 4
        else:
            step = 32 * 4 // max(4, i.width)
            groups, words = [at[n:n + step] for n in range(0, len(at), step)], max(1, i.width // 4)
        if i.base in ("LDS", "STS", "LDSM"):
            for group in groups:
                banks = {}
                for word in {a // 4 + n for a in group for n in range(words)}:
                    banks[word % 32] = banks.get(word % 32, 0) + 1
                self.wavefronts += max(banks.values())
                self.ideal_wavefronts += 1
            return
        self.requests += 1
        sectors, known = {a // 32 for a in at}, self.sectors["LDG" if i.base == "LDG" else "STG"]
        if i.sets < 6 and sectors <= known:
            self.ready[i.sets] = self.time + L1_LATENCY
        known |= sectors
        self.lines += max(len({a // 128 for a in at}), len(sectors) / 4)

    def run(self):
        code, groups, alive = self.kernel.code, [(0, ALL)], ALL
        meeting, waiting = {}, {}  # lanes that meet, by lane and register; lanes that wait
        ready = self.ready = [0] * 6  # when the result of each scoreboard is there
        while groups:
            pc, mask = groups.pop()
            while mask:
                i = code[pc]
                self.counts[pc] += 1
                for n in i.waits:
                    self.time = max(self.time, ready[n])
                if i.name == "WARPGROUP" and "DEPBAR" in i.mods:
                    self.time = max(self.time, self.products_end)
                issued = self.time
                self.time += i.stall or 1
                taken, condition = mask, i.guard(self) if i.guard else 1
                if condition is None:
                    self.unknown += i.base == "BRA"
                    taken = 0
                elif type(condition) is list:
                    taken = sum(1 << n for n in lanes_of(mask) if condition[n])
                elif not condition:
                    taken = 0
                if i.sets < 6 and taken:
                    ready[i.sets] = max(ready[i.sets], issued + i.latency)
                if i.frees < 6:
                    ready[i.frees] = max(ready[i.frees], issued + 20)
                pc += 16
                self.mask, self.lanes = taken, lanes_of(taken)
                if i.base == "BSSY":
                    meeting.update({(n, i.operands[0]): mask for n in lanes_of(mask)})
                elif i.base == "BREAK":
                    for key in [k for k in meeting if k[1] == i.operands[0]]:
                        meeting[key] &= ~taken
                elif i.base == "BSYNC":
                    key = meeting[lanes_of(mask)[0], i.operands[0]], i.operands[0]
                    waiting[key] = (pc, waiting.get(key, (pc, 0))[1] | mask)
                    mask = 0
                elif i.base == "EXIT":
                    alive, mask = alive & ~taken, mask & ~taken
                elif i.base in ("BRA", "CALL", "RET") and taken and "DIV" not in i.mods:
                    for o in i.operands[:-1]:
                        if i.base == "BRA" and apply(int, source(o)(self)) in (0, None):
                            taken = 0
                    if i.base == "RET":
                        to = self.registers[i.operands[0].split()[0]]
                        target = to[self.lanes[0]] if type(to) is list else to
                    else:
                        target = int(i.operands[-1], 16)
                    if taken and taken != mask:
                        groups.append((pc, mask & ~taken))
                    if taken:
                        pc, mask = target, taken
                elif taken:
                    if i.memory:
                        self.touch(i)
                    if i.name == "HGMMA":
                        self.products_end = max(self.products_end, self.time) + hgmma_cycles(i)
                    if i.targets:
                        self.write(i, i.compute(self) if i.compute else None)
            # Lanes that have all met go on first. If no group of lanes is complete, one goes on that is not.
            for key, (pc, lanes) in sorted(waiting.items(), key=lambda w: w[1][1] != w[0][0] & alive):
                if lanes == key[0] & alive or (not groups and lanes):
                    del waiting[key]
                    groups.append((pc, lanes))
                    break
        return self


def hgmma_cycles(i):
    """Returns the cycles of a product of 64 x N x 16: the larger number of those to multiply, and those to read both
    operands at 128 bytes per cycle."""
    n = int(i.mods[0].split("x")[1])
    return max(n / 2, 16 + n / 4)
