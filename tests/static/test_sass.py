"""What the decode kernel's machine code must show, without a GPU: codes stay integers.

Compiles two instances for sm_90a and reads their main loop, which processes a half step: two tiles
of 16 tokens. A half step's *straight path* is the shortest way once around the loop through all of
its matrix products: no flush, no mask, FP32 parameters. No run is shorter, so a budget for it
cannot fail because of rare cases; what the loop may hold beside it is bounded separately.

Counts are per warp (or, which is the same, per lane). Budgets are what was measured plus slack, so
that another version of the compiler passes.
"""

import importlib.metadata
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import sass

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr"]

HEAD_DIM = 128
HALF_TOKENS = 32
TILES_PER_HALF = 2
STEP_TILES = 4  # a step is two halves; it ends with the request for a later one
LANES = 32
# Products of m16n8k32 per half: QK covers 16 tokens x 32 channels, PV 16 channels x 32 tokens.
PRODUCTS_PER_HALF = TILES_PER_HALF * (HEAD_DIM // 32) + HEAD_DIM // 16
CODES = HALF_TOKENS * HEAD_DIM // LANES  # of K; as many of V
LOGITS = HALF_TOKENS * 4 // LANES  # 4 query rows per column tile
ACCUMULATORS = HEAD_DIM // 16 * 4  # integers that a flush converts to FP32

# FP32 operations on the straight path: measured 37 (20 FFMA, 13 FADD, 4 FMUL), for 4 logits. With
# a scale per value there would be at least 2 * CODES / 2 = 128, even at two values an instruction.
FLOAT_BUDGET = 44
# Measured: 0. A few outside the loop would do no harm.
COLD_SPILL_BUDGET = 16


@dataclass(frozen=True)
class Case:
    bits: int
    tile_budget: float  # instructions per tile, averaged over a step

    @property
    def config(self):
        return f"Config<{self.bits}, {self.bits}, {HEAD_DIM}, 1, 1>"

    @property
    def mangled(self):
        return f"6ConfigILi{self.bits}ELi{self.bits}ELi{HEAD_DIM}ELi1ELi1EE"


# Measured with nvcc 13.0: 155.5 and 167.5. At the memory's ceiling a tile arrives every 74 clocks
# (INT2; INT4: 133), in which an SM's four schedulers have 296 (532) issue slots.
CASES = [Case(2, 164), Case(4, 176)]


def find_nvcc():
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and (path := shutil.which("nvcc", path=str(Path(home) / "bin"))):
            return path
    return shutil.which("nvcc")


def find_nvdisasm(nvcc):
    """The toolkit's, which fits its compiler; else the Python package's."""
    for folder in (str(Path(nvcc).resolve().parent), None):
        if path := shutil.which("nvdisasm", path=folder):
            return path
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(f.locate()) for f in files if f.name == "nvdisasm"), None)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """mangled name -> sass.Kernel of the instances of CASES."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc not found: no device code to look at")
    nvdisasm = find_nvdisasm(nvcc)
    if nvdisasm is None:
        pytest.skip("nvdisasm not found, neither beside nvcc nor as package nvidia-cuda-nvdisasm")
    folder = tmp_path_factory.mktemp("sass")
    source, cubin = folder / "instances.cu", folder / "instances.cubin"
    arguments = "(const __grid_constant__ DecodeKernelArgs)"
    instances = "".join(
        f"template __global__ void decode_folded<{case.config}>{arguments};\n" for case in CASES
    )
    source.write_text(
        '#include "backends/cuda/decode/kernel.cuh"\n'
        f"namespace foscar::cuda {{\n{instances}}}  // namespace foscar::cuda\n"
    )
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    run([nvcc, *FLAGS, *includes, "-cubin", "-o", cubin, source])
    return sass.parse(run([nvdisasm, "-c", cubin]))


@dataclass
class MainLoop:
    kernel: sass.Kernel
    loop: sass.Loop
    products: list  # positions of the matrix products
    straight: list  # positions on the straight path
    step: int  # instructions of two half steps; one of them waits for its data and requests more

    def count(self, pattern, where=None):
        return len(self.kernel.find(pattern, self.straight if where is None else where))

    @property
    def halves(self):
        """Half steps per turn of the loop: 1, unless the compiler unrolls."""
        return len(self.products) / PRODUCTS_PER_HALF


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"int{case.bits}")
def case(request):
    return request.param


@pytest.fixture(scope="module")
def main_loop(case, kernels):
    (kernel,) = (k for name, k in kernels.items() if case.mangled in name)
    loop = sass.innermost_loop(kernel, "IMMA")
    assert loop is not None, "no loop with integer matrix products"
    products = kernel.find("IMMA", loop.body)
    straight = sass.shortest_cycle(kernel, loop, products)
    assert straight is not None, "no way around the loop meets all products"
    waits = kernel.find(r"SYNCS\.PHASECHK", [i for i in loop.body if i < products[0]])
    copies = kernel.find("UBLKCP", loop.body)
    requesting = sass.shortest_cycle(kernel, loop, [waits, *products, copies])
    assert requesting is not None, "no way around the loop waits and requests"
    return MainLoop(kernel, loop, products, straight, len(straight) + len(requesting))


def test_products_are_integer(main_loop):
    opcodes = {main_loop.kernel.opcode(i) for i in main_loop.products}
    assert all(opcode.startswith("IMMA.16832.U8") for opcode in opcodes), opcodes
    assert len(main_loop.products) % PRODUCTS_PER_HALF == 0, "not whole half steps per turn"
    assert main_loop.kernel.find("HMMA|HGMMA|QGMMA|IGMMA") == []


def test_no_conversion_per_code(main_loop):
    """One conversion per logit; none per code, and no arithmetic that amounts to one."""
    logits = LOGITS * main_loop.halves
    assert main_loop.count("I2F") <= logits
    assert main_loop.count("F2I|F2F|I2I|I2IP|F2FP") == 0
    assert main_loop.count("HADD2|HMUL2|HFMA2") == 0
    assert main_loop.count("FADD|FMUL|FFMA") <= FLOAT_BUDGET * main_loop.halves < CODES
    # Beside the straight path, a flush converts each accumulator once. (I2F.RP belongs to integer
    # divisions: the request for pages divides when it turns to another row.)
    body = main_loop.loop.body
    divisions = main_loop.count(r"I2F\.(U32\.)?RP", body)
    assert divisions <= 4
    assert main_loop.count("I2F", body) - divisions <= logits + ACCUMULATORS
    assert main_loop.count("F2I", body) <= divisions


def test_operands_are_masks(main_loop):
    """A product takes four registers of codes, each at most a shift or a permute and a mask."""
    assert main_loop.count("LOP3|SHF|PRMT") <= 2 * 4 * len(main_loop.products)


def test_no_spills(main_loop):
    """The loop holds everything in registers."""
    assert main_loop.count("LDL|STL", main_loop.loop.body) == 0
    assert main_loop.count("LDL|STL", range(len(main_loop.kernel.text))) <= COLD_SPILL_BUDGET


def test_instructions_per_tile(main_loop, case):
    per_tile = main_loop.step / (STEP_TILES * main_loop.halves)
    assert per_tile <= case.tile_budget
    # Far less would mean that the path misses work that every half step has to do.
    assert per_tile >= 0.5 * case.tile_budget
