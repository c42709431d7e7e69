"""The machine code of the passes' kernels: test_sass.py LIBRARY ARCH...

Disassembles every kernel of a pass for every architecture that the library was built for and demands
the instructions that do its work, in the roles that they belong to, and what a budget allows of
registers and local memory. The disassembler is NVIDIA's, from the packages of
tests/requirements.txt.
"""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import unittest

# ---- What is expected ----------------------------------------------------------------------------
# SASS names of what PTX calls wgmma, tcgen05.mma, tcgen05.ld and .st, tcgen05.alloc,
# tcgen05.commit, bulk tensor copies into and out of shared memory, and
# clusterlaunchcontrol.try_cancel.
WGMMA, UMMA, LOAD_SUMS, STORE_SUMS = "HGMMA", "UTCHMMA", "LDTM", "STTM"
# The product with block scales, and tcgen05.cp, which brings these to tensor memory.
SCALED_UMMA, COPY_SCALES = "UTCQMMA", "UTCCP"
TAKE_TENSOR_MEMORY, COMMIT = "UTCATOMSWS", "UTCBAR"
LOAD_TILE, STORE_TILE, NEXT_UNIT = "UTMALDG", "UTMASTG", "UGETNEXTWORKID"
BLACKWELL_ONLY = {
    UMMA,
    SCALED_UMMA,
    COPY_SCALES,
    LOAD_SUMS,
    STORE_SUMS,
    TAKE_TENSOR_MEMORY,
    COMMIT,
    NEXT_UNIT,
}

# Registers that a role has, as its setmaxnreg says: movers (loaders, scheduler, exchange, teller),
# consumers, issuer. src/kernels/layout.cuh, blackwell.cuh and block_scaled_*layout.cuh.
HOPPER = {"movers": 88, "consumers": 208}
BLACKWELL_FORWARD = {"movers": 104, "consumers": 176, "issuer": 56}
BLACKWELL_BACKWARD = {"movers": 72, "consumers": 192, "issuer": 56}
BLOCK_SCALED = {"movers": 88, "consumers": 176, "issuer": 72}
# Of this one a warpgroup makes operands, and one of its threads is the issuer.
BLOCK_SCALED_BACKWARD = {"movers": 48, "consumers": 200, "makers": 64}

# Accesses to local memory that a role may have. Movers have small arrays there that the plan's loops
# index, once a task; products and epilogues do without.
LOCAL_ACCESSES = {"start": 8, "movers": 800, "consumers": 16, "issuer": 24, "makers": 88}
# A few times a task, outside the loops of its products: where rows of d_x and their router gradients'
# partial sums go.
LOCAL_ACCESSES_OF = {
    "backward_kernel": {"consumers": 40},
    "backward_blackwell_kernel": {"consumers": 24},
    "backward_blackwell_pair_kernel": {"consumers": 24},
    "block_scaled_backward_blackwell_kernel": {"consumers": 48},
}
STACK_BYTES = 1024  # of a thread

# Where an instruction belongs, and nowhere else.
PLACES = {
    UMMA: {"issuer"},
    SCALED_UMMA: {"issuer", "makers"},
    COPY_SCALES: {"issuer", "makers"},
    COMMIT: {"issuer", "makers"},
    LOAD_SUMS: {"consumers"},
    STORE_SUMS: {"consumers"},
    LOAD_TILE: {"movers"},
    STORE_TILE: {"consumers"},
    NEXT_UNIT: {"movers"},
    WGMMA: {"consumers"},
}
FORWARD = {UMMA, LOAD_SUMS, TAKE_TENSOR_MEMORY, COMMIT, NEXT_UNIT, LOAD_TILE}
BLOCK_SCALED_FORWARD = FORWARD - {UMMA} | {SCALED_UMMA, COPY_SCALES, STORE_TILE}
KERNELS = {
    "90a": {
        "forward_kernel": {WGMMA, LOAD_TILE},
        "backward_kernel": {WGMMA, LOAD_TILE, STORE_TILE},
    },
    "100a": {
        "forward_blackwell_kernel": FORWARD,
        "forward_blackwell_pair_kernel": FORWARD,
        "block_scaled_forward_blackwell_kernel": BLOCK_SCALED_FORWARD,
        "block_scaled_forward_alone_blackwell_kernel": BLOCK_SCALED_FORWARD,
        "block_scaled_backward_blackwell_kernel": BLOCK_SCALED_FORWARD | {STORE_SUMS},
        "backward_blackwell_kernel": FORWARD | {STORE_SUMS, STORE_TILE},
        "backward_blackwell_pair_kernel": FORWARD | {STORE_SUMS, STORE_TILE},
    },
}
KERNELS["103a"] = KERNELS["100a"]
FOREIGN_PRODUCTS = {
    name: {UMMA} if SCALED_UMMA in wanted else {SCALED_UMMA, COPY_SCALES}
    for name, wanted in KERNELS["100a"].items()
}
# Kernels of pairs of CTAs: all of these are the pair's there, and none is elsewhere.
PAIRS = {
    "forward_blackwell_pair_kernel",
    "block_scaled_forward_blackwell_kernel",
    "backward_blackwell_pair_kernel",
}
OF_PAIRS = {UMMA, SCALED_UMMA, COPY_SCALES, COMMIT, LOAD_TILE}
# Each CTA of this one also loads what its own consumers read.
LOADS_FOR_ITSELF = {"backward_blackwell_pair_kernel"}


# ---- Reading -------------------------------------------------------------------------------------
def cuobjdump(*arguments):
    folder = pathlib.Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin")
    environment = dict(os.environ, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        [folder / "cuobjdump", *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"cuobjdump {arguments}: {done.stderr.strip()}")
    return done.stdout


INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([^;]*);")
REGISTERS = re.compile(r"(0x[0-9a-f]+)\s*$")


class Kernel:
    """The instructions of one function: of each role the list of names.

    Roles stand one behind another, each behind its setmaxnreg, which tells them apart.
    """

    def __init__(self):
        self._parts = [(0, [])]
        self.of_pairs = {}  # name: how many are a pair's, how many are not

    def add(self, name, rest):
        if name in OF_PAIRS:
            counts = self.of_pairs.setdefault(name, [0, 0])
            counts[".2CTA" not in rest.split()[0]] += 1
        if name == "USETMAXREG":
            self._parts.append((int(REGISTERS.search(rest)[1], 16), []))
        self._parts[-1][1].append(name)

    def roles(self, registers_of_role):
        roles = {"start": self._parts[0][1]}
        for registers, names in self._parts[1:]:
            found = [role for role, expected in registers_of_role.items() if expected == registers]
            if not found or found[0] in roles:
                raise AssertionError(f"a role with {registers} registers: not expected")
            roles[found[0]] = names
        return roles


def kernels_of(library, arch):
    """{function name: Kernel} of the passes' kernels in a library."""
    kernels, current = {}, None
    for line in cuobjdump("-sass", "-arch", f"sm_{arch}", library).splitlines():
        if "Function :" in line:
            current = None
            for name in KERNELS[arch]:
                # Mangled, with its length before the name.
                if re.search(rf"(?<=\d){name}E", line):
                    current = kernels.setdefault(name, Kernel())
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.add(match[1], match[2])
    return kernels


def registers_of(arch, name):
    if arch == "90a":
        return HOPPER
    if name == "block_scaled_backward_blackwell_kernel":
        return BLOCK_SCALED_BACKWARD
    if name.startswith("block_scaled"):
        return BLOCK_SCALED
    return BLACKWELL_FORWARD if name.startswith("forward") else BLACKWELL_BACKWARD


# ---- Tests ---------------------------------------------------------------------------------------
class Sass(unittest.TestCase):
    library, archs = "", ()

    def test_instructions(self):
        for arch in self.archs:
            found = kernels_of(self.library, arch)
            self.assertEqual(set(found), set(KERNELS[arch]), arch)
            for name, kernel in found.items():
                with self.subTest(arch=arch, kernel=name):
                    self.check_instructions(arch, name, kernel)

    def check_instructions(self, arch, name, kernel):
        registers = registers_of(arch, name)
        roles = kernel.roles(registers)
        self.assertEqual(set(roles), {"start", *registers})
        present = set().union(*roles.values())
        self.assertEqual(KERNELS[arch][name] - present, set(), "instructions that are missing")
        foreign = BLACKWELL_ONLY if arch == "90a" else {WGMMA}
        self.assertEqual(foreign & present, set(), "of another architecture")
        for instruction, places in PLACES.items():
            found = {role for role, names in roles.items() if instruction in names}
            self.assertLessEqual(found, places, instruction)
        self.assertEqual(
            FOREIGN_PRODUCTS.get(name, set()) & present, set(), "products of another precision"
        )
        for instruction, (pairs, alone) in kernel.of_pairs.items():
            if instruction == LOAD_TILE and name in LOADS_FOR_ITSELF:
                self.assertGreater(pairs, 0, instruction)
            else:
                self.assertEqual(alone if name in PAIRS else pairs, 0, instruction)
        local = {role: names.count("STL") + names.count("LDL") for role, names in roles.items()}
        size = sum(len(names) for names in roles.values())
        print(f"sm_{arch} {name}: {size} instructions, accesses to local memory {local}")
        budget = LOCAL_ACCESSES | LOCAL_ACCESSES_OF.get(name, {})
        for role, accesses in local.items():
            self.assertLessEqual(accesses, budget[role], f"local memory of {role}")

    def test_resources(self):
        """Registers at launch: what 65536 of a multiprocessor give each of the CTA's threads."""
        for arch in self.archs:
            threads = 384 if arch == "90a" else 512
            text = cuobjdump("-res-usage", "-arch", f"sm_{arch}", self.library)
            found = {}
            for function, usage in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", text):
                for name in KERNELS[arch]:
                    if re.search(rf"(?<=\d){name}E", function):
                        found[name] = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", usage)}
            self.assertEqual(set(found), set(KERNELS[arch]), arch)
            for name, usage in found.items():
                with self.subTest(arch=arch, kernel=name):
                    self.assertLessEqual(usage["REG"], 65536 // threads)
                    # What the system keeps; the CTA's own is dynamic, and bounded by static
                    # assertions beside the kernels.
                    self.assertLessEqual(usage["SHARED"], 1024)
                    self.assertLessEqual(usage["STACK"], STACK_BYTES)


if __name__ == "__main__":
    Sass.library, *Sass.archs = sys.argv[1:]
    if not Sass.archs or set(Sass.archs) - set(KERNELS):
        sys.exit(f"test_sass: expected LIBRARY and some of {sorted(KERNELS)}, found {sys.argv[1:]}")
    unittest.main(argv=sys.argv[:1], verbosity=2)
