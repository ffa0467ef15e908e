"""Translates kernels from PTX to Python: each kernel becomes a generator function that runs one thread.

A thread yields (site, arguments) where it waits for other threads; machine.py answers. A register is a local variable:
integers are unsigned, %f and %fd are floats, predicates are true or false. A float is rounded to f32 by a store to a
one-element array. An unknown instruction is an error. fma rounds twice, to double and to f32.
"""
import re
import struct

WIDTH = {"pred": 1, "8": 8, "16": 16, "32": 32, "64": 64}
FIRST_SHARED = 1024  # a GPU keeps the first KiB for itself
LETTERS = {"u8": "B", "s8": "b", "b8": "B", "u16": "H", "b16": "H", "u32": "I", "s32": "I", "b32": "I", "u64": "Q",
           "s64": "Q", "b64": "Q", "f32": "f", "f64": "d"}  # of module struct


class Fault(Exception):
    """Something that a kernel must not do."""


class Instruction:
    def __init__(self, line, text):
        self.line, self.text = line, text
        m = re.fullmatch(r"(?:@(!?)%?(\w+)\s+)?([\w.:]+)\s*(.*)", text, re.S)
        if not m:
            raise Fault(f"line {line}: cannot read {text!r}")
        self.guard = m[2] and ("not " if m[1] else "") + m[2]
        self.parts = m[3].split(".")
        self.op, self.kind = self.parts[0], self.parts[-1]
        self.operands = [o.strip() for o in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{\[]+", m[4]) if o.strip()]


def registers_of(operand):
    return [name.strip().lstrip("%") for name in operand.strip("{}").split(",")]


def is_float(operand):
    return operand.startswith(("%f", "0f", "0d"))


def width_of(kind):
    return WIDTH[kind if kind == "pred" else kind[1:]]


class Kernel:
    """A kernel of a module. `run` is its generator function, compiled from the text `python`."""

    def __init__(self, name, head, body, first_line, module_shared):
        self.name = name
        self.parameters = {}  # name: index
        for m in re.finditer(r"\.param\s[^,)]*?(\w+)(?:\[\d+\])?\s*(?=[,)\n])", head):
            self.parameters[m[1]] = len(self.parameters)
        self.place_shared(body, module_shared)
        self.sites = []            # instruction of each place where threads wait
        self.parameter_loads = []  # (index, offset, format) of each value in the list P
        self.pointers = {}         # the parameter whose address (index << 32) a register holds
        self.lines = [0]           # PTX line of each line of `python`
        self.sums = []             # the registers of each accumulator of wgmma
        self.python = []
        self.read(body, first_line)
        self.asynchronous = any(i.op == "fence" for i in self.instructions)
        self.emit_function()

    def place_shared(self, body, module_shared):
        declaration = r"(?m)^\s*\.shared \.align (\d+) \.(?:b8|u32) ([\w$]+)(?:\[(\d+)\])?"
        self.shared, end = {}, FIRST_SHARED
        own = re.findall(declaration, body)
        used = [d for d in re.findall(declaration, module_shared) if re.search(rf"\b{re.escape(d[1])}\b", body)]
        for align, name, size in own + used:
            end += -end % int(align)
            self.shared[name] = end
            end += int(size or 4)
        for align, name in re.findall(r"\.extern \.shared \.align (\d+) \.b8 (\w+)\[\]", module_shared):
            end += -end % int(align)
            self.shared[name] = end
        self.static_end = end

    def read(self, body, first_line):
        """Fills `instructions`, and `labels` with the index of the instruction that follows each label."""
        self.instructions, self.labels, statement = [], {}, ""
        for line, text in enumerate(body.split("\n"), first_line):
            text = text.split("//")[0].strip()
            if m := re.fullmatch(r"(\$\w+):", text):
                self.labels[m[1]] = len(self.instructions)
                continue
            if text in ("{", "}", "") or (not statement and text.startswith(".")):
                continue
            statement += " " + text
            while ";" in statement:
                first, statement = statement.split(";", 1)
                self.instructions.append(Instruction(line, first.strip()))
                statement = statement.strip()

    # ---- control flow: blocks in order. `pc` is the number of the first block that may run next ----------------------

    def emit_function(self):
        starts = {0, *self.labels.values()}
        starts |= {i + 1 for i, instruction in enumerate(self.instructions) if instruction.op in ("bra", "ret")}
        starts = sorted(s for s in starts if s < len(self.instructions))
        self.block_of = {label: starts.index(i) for label, i in self.labels.items() if i in starts}
        self.sums = list({i.operands[0]: 0 for i in self.instructions if i.parts[1:2] == ["mma_async"]})
        names = "T, P, F, U, D, Q, tid_x, tid_y, tid_z, ctaid_x, ctaid_y, ctaid_z"
        self.emit(0, f"def kernel({names}):", 0)
        self.emit(0, "pc = 0", 1)
        self.emit(0, "yield", 1)  # the scheduler's first resume
        self.emit(0, "while True:", 1)
        blocks = [self.instructions[a:b] for a, b in zip(starts, starts[1:] + [len(self.instructions)])]
        self.emit_blocks(blocks, 0, len(blocks), 2)
        self.emit(0, "raise Fault('ran off the end')", 2)
        self.code = compile("\n".join(self.python), self.name, "exec")

    def emit_blocks(self, blocks, begin, end, depth):
        self.emit(blocks[begin][0].line, f"if pc <= {end - 1}:", depth)
        if end - begin > 1:
            middle = (begin + end) // 2
            self.emit_blocks(blocks, begin, middle, depth + 1)
            self.emit_blocks(blocks, middle, end, depth + 1)
            return
        self.in_flight, self.written = set(), set()
        for instruction in blocks[begin]:
            self.emit_instruction(instruction, begin, depth + 1)

    def emit(self, line, text, depth):
        self.python.append("\t" * depth + text)
        self.lines.append(line)

    def emit_instruction(self, i, block, depth):
        try:
            text = self.branch(i, block) if i.op in ("bra", "ret") else self.translate(i)
        except (Fault, KeyError, ValueError, IndexError) as error:
            raise Fault(f"{self.name}: line {i.line}: {i.text[:200]}: {error!r}") from error
        if i.guard:
            self.emit(i.line, f"if {i.guard}:", depth)
            depth += 1
        for line in text.split("\n"):
            self.emit(i.line, line, depth)

    def branch(self, i, block):
        if i.op == "ret":
            return "return"
        target = self.block_of[i.operands[0]]
        return f"pc = {target}" + ("; continue" if target <= block else "")

    # ---- operands ---------------------------------------------------------------------------------------------------

    def value(self, operand, kind):
        if m := re.fullmatch(r"%(tid|ctaid)\.([xyz])", operand):
            return f"{m[1]}_{m[2]}"
        if m := re.fullmatch(r"%(ntid|nctaid)\.([xyz])", operand):
            return f"T.{m[1]}[{'xyz'.index(m[2])}]"
        if re.fullmatch(r"%\w+", operand):
            return operand[1:]
        if operand[:2] in ("0f", "0d"):
            number = struct.unpack(">f" if operand[1] == "f" else ">d", bytes.fromhex(operand[2:]))[0]
            return repr(number) if number - number == 0 else f"float('{number}')"
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            return str(int(operand.rstrip("U"), 0) & ((1 << width_of(kind)) - 1))
        if operand in self.shared:
            return str(self.shared[operand])
        if operand == "over":  # the one register that our inline assembly declares
            return operand
        raise Fault(f"unknown operand {operand!r}")

    def signed(self, operand, kind):
        value, sign = self.value(operand, kind), 1 << (width_of(kind) - 1)
        return str((int(value) ^ sign) - sign) if value.isdigit() else f"(({value} ^ {sign}) - {sign})"

    def address(self, operand):
        base, *offset = re.split(r"\+", operand.strip("[] "))
        return self.value(base, "u64") + "".join(f" + {int(o)}" for o in offset)

    def wait(self, i, *arguments):
        self.sites.append(i)
        return f"yield {len(self.sites) - 1}, ({''.join(a + ', ' for a in arguments)})"

    # ---- instructions -----------------------------------------------------------------------------------------------

    def translate(self, i):
        target = i.operands[0] if i.operands else ""
        named = getattr(self, "op_" + i.op, None)
        if named:
            text = named(i)
        elif i.kind in ("f32", "f64"):
            text = self.arithmetic_of_floats(i)
        else:
            text = self.arithmetic(i)
        if self.sums and i.parts[0] != "wgmma" and target.strip("{").startswith("%f"):
            written = set(registers_of(target))
            if self.in_flight & written:
                raise Fault(f"writes {self.in_flight & written}, which products in flight will write")
            self.written |= written
        if self.in_flight and i.parts[0] != "wgmma":
            for operand in i.operands[1:]:
                if self.in_flight & set(registers_of(operand)):
                    raise Fault("reads a sum before the wait for its products")
        return text

    def assign(self, i, expression):
        target = i.operands[0].lstrip("%")
        if i.kind == "f32":
            return f"F[0] = {expression}; {target} = F[0]"
        return f"{target} = {expression}"

    def arithmetic_of_floats(self, i):
        a, b, c = (self.value(o, i.kind) for o in (i.operands[1:] + ["0", "0"])[:3])
        rounding = {"rm", "rz", "rp"} & set(i.parts)
        expressions = {
            "add": f"{a} + {b}", "sub": f"{a} - {b}", "mul": f"{a} * {b}", "fma": f"{a} * {b} + {c}", "neg": f"-{a}",
            "abs": f"abs({a})", "div": f"DIV({a}, {b})", "rcp": f"DIV(1.0, {a})", "sqrt": f"SQRT({a})",
            "ex2": f"EX2({a})", "min": f"MIN({a}, {b})", "max": f"MAX({a}, {b})", "copysign": f"COPYSIGN({b}, {a})"}
        expression = expressions[i.op]
        if rounding:
            expression = f"ROUND_{rounding.pop()}({expression})"
        return self.assign(i, expression)

    def arithmetic(self, i):
        kind, modifiers = i.kind, i.parts[1:-1]
        number = self.signed if kind[0] == "s" else self.value
        a, b, c = (number(o, kind) for o in (i.operands[1:] + ["0", "0"])[:3])
        width, unknown = width_of(kind), set(modifiers) - {"lo", "hi", "wide"}
        if unknown:
            raise Fault(f"unknown modifiers {unknown}")
        mask = (1 << (2 * width if "wide" in modifiers else width)) - 1
        if kind == "pred":
            return self.assign(i, {"and": f"{a} and {b}", "or": f"{a} or {b}", "not": f"not {a}",
                                   "xor": f"bool({a}) != bool({b})"}[i.op])
        if i.op == "mad":
            wide = "u64" if "wide" in modifiers else kind
            c = self.value(i.operands[3], wide)
        shift = self.value(i.operands[2], "u32") if i.op in ("shl", "shr") else None
        product = f"({a} * {b} >> {width})" if "hi" in modifiers else f"{a} * {b}"
        expression = {
            "add": f"{a} + {b} & {mask}", "sub": f"{a} - {b} & {mask}", "mul": f"{product} & {mask}",
            "mad": f"{product} + {c} & {mask}", "and": f"{a} & {b}", "or": f"{a} | {b}", "xor": f"{a} ^ {b}",
            "not": f"{a} ^ {mask}", "neg": f"-{a} & {mask}", "abs": f"abs({a})",
            "shl": f"{a} << min({shift}, {width}) & {mask}", "shr": f"{a} >> min({shift}, {width}) & {mask}",
            "min": f"min({a}, {b}) & {mask}", "max": f"max({a}, {b}) & {mask}", "div": f"IDIV({a}, {b}) & {mask}",
            "rem": f"IREM({a}, {b}) & {mask}"}[i.op]
        if shift and shift.isdigit():
            expression = expression.replace(f"min({shift}, {width})", shift)
        return self.assign(i, expression)

    def op_mov(self, i):
        target, source = i.operands
        if source in self.parameters:
            self.pointers[target] = source
            return f"{target[1:]} = {self.parameters[source] << 32}"
        if source.startswith("{"):
            parts = registers_of(source)
            width = width_of(i.kind) // len(parts)
            bits = " | ".join(f"{p} << {n * width}" for n, p in enumerate(parts))
            return f"Q[0] = {bits}; {target[1:]} = D[0]" if is_float(target) else self.assign(i, bits)
        if target.startswith("{"):
            parts = registers_of(target)
            width, bits = width_of(i.kind) // len(parts), source[1:]
            first = f"D[0] = {bits}; " if is_float(source) else ""
            bits = "Q[0]" if first else bits
            return first + "; ".join(f"{p} = {bits} >> {n * width} & {(1 << width) - 1}" for n, p in enumerate(parts))
        value, name = self.value(source, i.kind), target[1:]
        if is_float(target) == is_float(source):
            return f"{name} = {value}"
        floats, bits = ("D", "Q") if width_of(i.kind) == 64 else ("F", "U")
        if is_float(target):
            return f"{bits}[0] = {value}; {name} = {floats}[0]"
        return f"{floats}[0] = {value}; {name} = {bits}[0]"

    def op_cvta(self, i):
        return self.assign(i, self.value(i.operands[1], "u64"))

    def op_setp(self, i):
        compare = i.parts[1]
        number = self.signed if i.kind[0] == "s" else self.value
        a, b = number(i.operands[1], i.kind), number(i.operands[2], i.kind)
        signs = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
        opposite = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
        if i.kind[0] == "f" and compare == "ne":
            raise Fault("an ordered comparison that is not implemented")
        if compare in signs:
            test = f"{a} {signs[compare]} {b}"
        elif compare in opposite:
            test = f"not {a} {opposite[compare]} {b}"
        else:
            test = {"neu": f"{a} != {b}", "nan": f"{a} != {a} or {b} != {b}",
                    "num": f"{a} == {a} and {b} == {b}"}[compare]
        return f"{i.operands[0][1:]} = {test}"

    def op_selp(self, i):
        a, b, p = (self.value(o, i.kind) for o in i.operands[1:])
        return f"{i.operands[0].lstrip('%')} = {a} if {p} else {b}"

    def op_cvt(self, i):
        target, source = i.operands[0][1:], i.operands[1]
        modifiers, to, kind = i.parts[1:-2], i.parts[-2], i.parts[-1]
        a = self.signed(source, kind) if kind[0] == "s" else self.value(source, kind)
        if to == "bf16x2":
            return f"{target} = BF16({a}) << 16 | BF16({self.value(i.operands[2], kind)})"
        if modifiers == ["sat"]:
            a = f"SATURATE({a})"
        elif modifiers == ["rzi"]:
            a = f"TRUNCATE({a})"
        elif modifiers == ["rni"]:
            a = f"NEAREST({a})"
        elif modifiers not in ([], ["rn"]):
            raise Fault(f"unknown modifiers {modifiers}")
        if to == "f32":
            return f"F[0] = {a}; {target} = F[0]"
        if to == "f64":
            return f"{target} = float({a})"
        if kind[0] == "f":  # the operand is an integer by now, and the result the nearest one of its type
            if modifiers not in (["rzi"], ["rni"]):
                raise Fault("a conversion that is not implemented")
            bits = width_of(to)
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
            a = f"INTEGER({a}, {low}, {high})"
        return f"{target} = {a} & {(1 << width_of(to)) - 1}"

    def op_bfi(self, i):
        a, b, position, length = (self.value(o, i.kind) for o in i.operands[1:])
        mask = (1 << int(length)) - 1 << int(position)
        return self.assign(i, f"{b} & {(1 << width_of(i.kind)) - 1 ^ mask} | {a} << {position} & {mask}")

    def op_prmt(self, i):
        a, b, selector = (self.value(o, "u32") for o in i.operands[1:])
        return f"{i.operands[0][1:]} = PRMT({a}, {b}, {selector})"

    def op_ld(self, i):
        space, kind = i.parts[1], i.kind
        targets = registers_of(i.operands[0])
        if space == "param":
            return self.load_parameter(i, targets)
        if space not in ("global", "shared") or set(i.parts[2:-1]) - {"nc", "v2", "v4"}:
            raise Fault("unknown load")
        if is_float(i.operands[0].strip("{")) != (kind[0] == "f"):
            raise Fault("a load into a register of another type")
        load = f"LD_{space}_{LETTERS[kind]}{len(targets)}({self.address(i.operands[1])})"
        if kind == "s32" and targets[0].startswith("rd"):
            load = f"({load.replace('_I1', '_i1')}) & {(1 << 64) - 1}"
        elif kind[0] == "s" and kind != "s32":
            raise Fault("a load of this type is not implemented")
        return f"{', '.join(targets)} = {load}"

    def load_parameter(self, i, targets):
        name, *offset = i.operands[1].strip("[]").split("+")
        if name not in self.pointers and name not in self.parameters:  # an address that was computed
            if len(targets) > 1 or width_of(i.kind) < 32:
                raise Fault("a load of this type from a computed address is not implemented")
            mask = f" & {(1 << 64) - 1}" if targets[0].startswith("rd") else ""
            return f"{targets[0]} = PARAMETER({self.address(i.operands[1])}, '<{LETTERS[i.kind]}'){mask}"
        index, at = self.parameters[self.pointers.get(name, name)], int(offset[0]) if offset else 0
        lines = []
        for target in targets:
            self.parameter_loads.append((index, at, "<" + LETTERS[i.kind]))
            value = f"P[{len(self.parameter_loads) - 1}]"
            lines.append(f"{target} = {value}" + (" & 65535" if i.kind == "s8" else ""))  # into %rs
            at += struct.calcsize(LETTERS[i.kind])
        return "; ".join(lines)

    def op_st(self, i):
        space, kind, sources = i.parts[1], i.kind, i.operands[1].strip("{}").split(",")
        if space not in ("global", "shared") or set(i.parts[2:-1]) - {"v2", "v4"}:
            raise Fault("unknown store")
        values = [self.value(s.strip(), kind) for s in sources]
        if any(is_float(s.strip()) != (kind[0] == "f") for s in sources if s.strip()[0] == "%"):
            raise Fault("a store from a register of another type")
        if kind in ("u8", "u16", "b8", "b16"):
            values = [f"{v} & {(1 << width_of(kind)) - 1}" for v in values]
        return f"ST_{space}_{LETTERS[kind]}{len(values)}(T, {self.address(i.operands[0])}, {', '.join(values)})"

    def op_atom(self, i):
        results = {"max": "max({old}, {b})", "add": "{old} + {b} & 4294967295"}
        if i.parts[1] != "global" or i.kind != "u32" or len(i.parts) != 4:
            raise Fault("unknown atomic operation")
        a, b, old = self.address(i.operands[1]), self.value(i.operands[2], "u32"), i.operands[0][1:]
        return f"{old} = LD_global_I1({a}); ST_global_I1(T, {a}, {results[i.parts[2]].format(old=old, b=b)})"

    def op_membar(self, i):
        return "pass"  # blocks run one after the other

    # ---- threads together -------------------------------------------------------------------------------------------

    def op_bar(self, i):
        if i.parts[1:] == ["warp", "sync"]:
            return self.wait(i, self.value(i.operands[0], "u32"))
        if i.parts[1:] != ["sync"] or i.operands != ["0"]:
            raise Fault("unknown barrier")
        return self.wait(i)

    def op_shfl(self, i):
        if i.parts[1:] not in (["sync", "bfly", "b32"], ["sync", "idx", "b32"]):
            raise Fault("unknown shuffle")
        value, predicate = i.operands[0].split("|")
        mask, *arguments = [self.value(i.operands[n], "u32") for n in (4, 1, 2, 3)]
        return f"{value[1:]}, {predicate[1:]} = {self.wait(i, mask, *arguments)}"

    def op_ldmatrix(self, i):
        i.transposed = "trans" in i.parts
        if i.parts[:5] != ["ldmatrix", "sync", "aligned", "m8n8", "x4"] or i.parts[-2:] != ["shared", "b16"]:
            raise Fault("unknown ldmatrix")
        return f"{', '.join(registers_of(i.operands[0]))} = {self.wait(i, self.address(i.operands[1]))}"

    def op_mma(self, i):
        a, b, c = (", ".join(registers_of(o)) for o in i.operands[1:])
        d = ", ".join(registers_of(i.operands[0]))
        return f"{d} = {self.wait(i, f'({a})', f'({b})', f'({c})')}"

    def op_wgmma(self, i):
        action = i.parts[1]
        if action == "fence":
            self.written = set()
            return "FENCE_PRODUCTS(T)"
        if action == "commit_group":
            return "COMMIT(T)"
        if action == "wait_group":
            if i.operands != ["0"]:
                raise Fault("a wait that leaves products in flight is not implemented")
            self.in_flight = set()
            lines = [f"done = {self.wait(i)}"]
            for n, sums in enumerate(self.sums):
                lines.append(f"if {n} in done: {', '.join(registers_of(sums))} = done[{n}]")
            return "\n".join(lines)
        shape = re.fullmatch(r"m64n(\d+)k16", i.parts[4])
        names = registers_of(i.operands[0])
        if i.parts[5:] != ["f32", "bf16", "bf16"] or len(names) != int(shape[1]) // 2:
            raise Fault("unknown product")
        if i.operands[3:6] != ["1", "1", "1"] or set(i.operands[6:]) - {"0", "1"}:  # scale-d, signs of a and b
            raise Fault("these operands of a product are not implemented")
        if self.written & set(names):
            raise Fault("a sum was written after wgmma.fence")
        self.in_flight |= set(names)
        # A descriptor, and 1 if the operand is transposed
        a, b = (f"({i.operands[n][1:]}, {i.operands[n + 5]})" for n in (1, 2))
        number = self.sums.index(i.operands[0])
        return f"PRODUCT(T, {number}, {a}, {b}, ({', '.join(names)}))\n{' = '.join(names)} = None"

    def op_setmaxnreg(self, i):
        registers = int(i.operands[0])
        if i.parts[2:] != ["sync", "aligned", "u32"] or registers % 8 or not 24 <= registers <= 256:
            raise Fault("unknown setmaxnreg")
        return "pass"

    def op_fence(self, i):
        if i.parts[1:] != ["proxy", "async", "shared::cta"]:
            raise Fault("unknown fence")
        return "FENCE_PROXY(T)"

    def op_mbarrier(self, i):
        action = ".".join(i.parts[1:])
        if action == "init.shared::cta.b64":
            return f"BARRIER_INIT(T, {self.address(i.operands[0])}, {self.value(i.operands[1], 'u32')})"
        if action == "arrive.shared::cta.b64" and i.operands[0] == "_":
            return f"BARRIER_ARRIVE({self.address(i.operands[1])}, 0)"
        if action == "arrive.expect_tx.shared::cta.b64" and i.operands[0] == "_":
            return f"BARRIER_ARRIVE({self.address(i.operands[1])}, {self.value(i.operands[2], 'u32')})"
        if action == "try_wait.parity.shared::cta.b64":
            wait = self.wait(i, self.address(i.operands[1]), self.value(i.operands[2], "u32"))
            return f"{i.operands[0]} = {wait}"
        raise Fault("unknown operation of a barrier")

    def op_cp(self, i):
        if i.parts[1:] != ["async", "bulk", "shared::cluster", "global", "mbarrier::complete_tx::bytes"]:
            raise Fault("unknown copy")
        to, source, barrier = (self.address(i.operands[n]) for n in (0, 1, 3))
        return f"BULK_COPY({to}, {source}, {self.value(i.operands[2], 'u32')}, {barrier})"


def plain_name(name):
    """Returns a mangled name as a compiler for the host would give it, in the namespace of the executor."""
    while m := re.search(r"(\d+)_GLOBAL__N__", name):
        begin, length = m.start(), int(m[1])
        name = name[:begin] + "12_GLOBAL__N_1" + name[begin + len(m[1]) + length:]
    return name.replace("N2rg3gpu", "N2rg11gpu_on_host")


def read_module(text):
    """Returns {plain name: function that makes the Kernel} for the kernels of a PTX file."""
    starts = list(re.finditer(r"(?m)^(?:\.\w+ )*\.entry (\w+)\(", text))
    module_shared = "\n".join(re.findall(r"(?m)^(?:\.extern )?\.shared.*", text))
    kernels = {}
    for start, end in zip(starts, [s.start() for s in starts[1:]] + [len(text)]):
        brace = text.index("\n{", start.start())

        def make(name=start[1], begin=start.start(), brace=brace, end=end):
            first_line = text.count("\n", 0, brace + 2) + 1
            return Kernel(name, text[begin:brace], text[brace + 2:end], first_line, module_shared)
        kernels[plain_name(start[1])] = make
    return kernels
